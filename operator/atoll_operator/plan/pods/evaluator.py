"""The evaluator's objects (a headless Service and a StatefulSet of one pod without a volume) and its reported state.

A StatefulSet gives the pod a fixed name, for its certificate and for the operator, and recreates it. Results are kept
in the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.api.group import EVALUATOR, Object
from atoll_operator.api.sections import EvaluatorSpec
from atoll_operator.plan.pods.template import PodSettings, container, workload
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


def objects(
    settings: PodSettings,
    namespace: str,
    owners: list[Object],
    spec: EvaluatorSpec,
    replicas: int,
    contract: str = "",
) -> tuple[Object, Object]:
    """Service and StatefulSet; for `contract` see `workload`."""
    told = EvaluationContract(**{name: getattr(spec, name) for name in EvaluationSpec.model_fields})
    environment = {ENV_EVALUATION: brief(told), "JAX_PLATFORMS": "cpu"}
    main = container(settings, "atoll_runtime.evaluator", environment, spec.resources)
    main["image"] = spec.image or main["image"]
    return workload(settings, EVALUATOR, namespace, owners, spec, main, PORTS, replicas, contract)
