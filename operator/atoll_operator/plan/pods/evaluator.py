"""The evaluator's objects (a headless Service and a StatefulSet of one pod without a volume) and its reported state.

A StatefulSet gives the pod a fixed name, for its certificate and for the operator, and recreates it. Results are kept
in the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.api.group import (
    ANNOTATION_CONTRACT,
    EVALUATOR,
    LABEL_COMPONENT,
    LABEL_MANAGER,
    LABEL_RUN,
    MANAGER,
    Object,
)
from atoll_operator.api.sections import EvaluatorSpec
from atoll_operator.plan.pods.names import evaluator
from atoll_operator.plan.pods.template import (
    LOST_NODES,
    PodSettings,
    container,
    headless,
    literals,
    pod_metadata,
    pod_spec,
    probes,
)
from atoll_runtime.contract import (
    ENV_EVALUATION,
    HEALTH_PORT,
    STATUS_PORT,
    EvaluationContract,
    EvaluationSpec,
    EvaluatorStatus,
    brief,
)

UNAVAILABLE = "EvaluatorUnavailable"
PORTS = {"status": STATUS_PORT, "health": HEALTH_PORT}


@dataclass(frozen=True, slots=True)
class EvaluatorState:
    """Its last report, and whether it answers now."""

    status: EvaluatorStatus | None = None
    """The last good answer."""
    reason: str = ""
    """Why the last poll failed; empty after a good one."""
    message: str = ""


def labels(run: str) -> dict[str, str]:
    return {LABEL_MANAGER: MANAGER, LABEL_RUN: run, LABEL_COMPONENT: EVALUATOR}


def service(run: str, namespace: str, owners: list[Object]) -> Object:
    return headless(evaluator(run), namespace, labels(run), owners, PORTS)


def stateful_set(
    run: str,
    namespace: str,
    owners: list[Object],
    spec: EvaluatorSpec,
    settings: PodSettings,
    replicas: int,
    contract: str = "",
) -> Object:
    """The StatefulSet. A pod whose hash differs from `contract` is replaced (`template_hash.py`)."""
    told = EvaluationContract(**{name: getattr(spec, name) for name in EvaluationSpec.model_fields})
    main = container(
        settings,
        command=["python", "-m", "atoll_runtime.evaluator"],
        environment={ENV_EVALUATION: brief(told), "JAX_PLATFORMS": "cpu"},
        resources=spec.resources,
        extra_resources={},
    )
    if spec.image is not None:
        main["image"] = spec.image
    main["ports"] = [{"name": name, "containerPort": port} for name, port in PORTS.items()]
    main |= probes("health")
    pod = pod_spec(settings, evaluator(run), main)
    pod["nodeSelector"] = dict(spec.node_selector)
    pod["tolerations"] = [*LOST_NODES, *(literals(item) for item in spec.tolerations)]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": evaluator(run),
            "namespace": namespace,
            "labels": labels(run),
            "ownerReferences": owners,
        },
        "spec": {
            "replicas": replicas,
            "serviceName": evaluator(run),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {LABEL_RUN: run, LABEL_COMPONENT: EVALUATOR}},
            "template": {
                "metadata": pod_metadata(settings, labels(run), {ANNOTATION_CONTRACT: contract}),
                "spec": pod,
            },
        },
    }
