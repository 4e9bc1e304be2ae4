"""What all pods of a run have in common: Pod Security `restricted`, no API token, certificates, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from atoll_operator.api.common import Resources
from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, Object
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.plan.pods.names import config_map, tls_secret
from atoll_runtime.contract import INCARNATION_FILE, JOURNAL_DIR, RUN_FILE, TERMINATION_LOG, TLS_DIR

CONTAINER = "main"
"""Name of the container in every pod that the operator creates. Others may be injected."""
USER = 65532
RUN_DIR = RUN_FILE.rpartition("/")[0]
POD_DIR = INCARNATION_FILE.rpartition("/")[0]
VOLUMES = ("run", "tls", "tmp", "pod", "journal")
"""Names of the volumes that the operator defines."""
PATHS = (RUN_DIR, TLS_DIR, "/tmp", POD_DIR, JOURNAL_DIR, TERMINATION_LOG)
"""Their mount paths, and the path at which the kubelet mounts a file."""
LEAVE_SECONDS = 30
"""`tolerationSeconds` for a lost node. Kubernetes' default of 300 s would dominate a heal."""


def lost_nodes(seconds: int) -> tuple[Object, ...]:
    """Tolerations that keep a pod on a lost node for this time."""
    return tuple(
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    )


LOST_NODES = lost_nodes(LEAVE_SECONDS)
"""For pods whose node the operator judges itself, and for pods of StatefulSets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the operator's settings and the run's spec define for every pod of a run."""

    run: str
    image: str
    pull_policy: str
    environment: Mapping[str, str]
    service_account: str | None = None
    template: PodTemplate = field(default_factory=PodTemplate)

    def variable(self, name: str) -> str:
        """Plain value of a variable, or empty. The run's value overrides the operator's."""
        said = {item.name: item.value or "" for item in self.template.env}
        return said.get(name, self.environment.get(name, ""))


def literals(section: BaseModel) -> Object:
    """The pod's form of an API section whose fields are those of a pod."""
    return section.model_dump(mode="json", by_alias=True, exclude_none=True)


def container(
    settings: PodSettings,
    *,
    command: Sequence[str],
    environment: Mapping[str, str],
    resources: Resources,
    extra_resources: Mapping[str, str],
) -> Object:
    """The pod's only container. `environment` overrides the run's variables, and those override the operator's."""
    plain = {name: {"name": name, "value": value} for name, value in settings.environment.items()}
    added = {item.name: literals(item) for item in settings.template.env}
    own = {name: {"name": name, "value": value} for name, value in {"HOME": "/tmp", **environment}.items()}
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": list(command),
        "env": list({**plain, **added, **own}.values()),
        "resources": {
            "requests": {**resources.requests, **extra_resources},
            "limits": {**resources.limits, **extra_resources},
        },
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "run", "mountPath": RUN_DIR, "readOnly": True},
            {"name": "tls", "mountPath": TLS_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *(literals(item) for item in settings.template.volume_mounts),
        ],
    }


def pod_spec(settings: PodSettings, member: str, main: Object) -> Object:
    """A pod's spec with this container; `member` names the certificate's Secret."""
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [main],
        "volumes": [
            {"name": "run", "configMap": {"name": config_map(settings.run)}},
            {"name": "tls", "secret": {"secretName": tls_secret(member), "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
            *(literals(item) for item in settings.template.volumes),
        ],
    }
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    if settings.template.image_pull_secrets:
        spec["imagePullSecrets"] = [literals(item) for item in settings.template.image_pull_secrets]
    if settings.template.priority_class_name is not None:
        spec["priorityClassName"] = settings.template.priority_class_name
    return spec


def pod_metadata(
    settings: PodSettings, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Object:
    """Labels and annotations of a pod: the operator's, and those of the run."""
    template = settings.template
    noted = {**template.annotations, **(annotations or {})}
    return {"labels": {**template.labels, **labels}, **({"annotations": noted} if noted else {})}


def headless(
    name: str, namespace: str, labels: Mapping[str, str], owners: list[Object], ports: Mapping[str, int]
) -> Object:
    """A headless Service for a StatefulSet. Pods get their DNS names before they are ready, so that the operator can
    read from them why they are not ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels),
            "ownerReferences": owners,
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {key: labels[key] for key in (LABEL_RUN, LABEL_COMPONENT)},
            "ports": [{"name": each, "port": port, "targetPort": port} for each, port in ports.items()],
        },
    }


def probes(port: str) -> Object:
    """Probes of a container that serves `/healthz` and `/readyz` on this named port. It may take 5 min to start."""
    return {
        "startupProbe": _probe("/healthz", port, period=2, failures=150),
        "livenessProbe": _probe("/healthz", port, period=10, failures=6),
        "readinessProbe": _probe("/readyz", port, period=5, failures=2),
    }


def _probe(path: str, port: str, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
