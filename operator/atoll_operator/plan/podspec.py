"""What all runtime pods have in common: Pod Security `restricted`, no API token, certificates and configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from atoll_operator.api.common import Resources
from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, Object
from atoll_operator.plan.names import config_map, tls_secret
from atoll_runtime.contract import RUN_FILE, TLS_DIR

USER = 65532


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the operator's settings and the run say about every pod of a run."""

    run: str
    image: str
    pull_policy: str
    environment: Mapping[str, str]
    service_account: str | None = None


def literals(section: BaseModel) -> Object:
    """A section of our API that has the same shape in a pod."""
    return section.model_dump(mode="json", by_alias=True, exclude_none=True)


def container(
    settings: PodSettings,
    *,
    command: Sequence[str],
    environment: Mapping[str, str],
    resources: Resources,
    extra_resources: Mapping[str, str],
) -> Object:
    """The one container, called `main`; what the pod needs beats what the operator's settings add."""
    values = {**settings.environment, "HOME": "/tmp", **environment}
    return {
        "name": "main",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in values.items()],
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
            {"name": "run", "mountPath": RUN_FILE.rsplit("/", 1)[0], "readOnly": True},
            {"name": "tls", "mountPath": TLS_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def pod_spec(settings: PodSettings, member: str, main: Object) -> Object:
    """A pod's spec around its container; `member` owns the certificate."""
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
        ],
    }
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    return spec


def headless(
    name: str, namespace: str, labels: Mapping[str, str], owners: list[Object], ports: Mapping[str, int]
) -> Object:
    """A Service that gives each pod of a StatefulSet its name, also before it is ready: why it is not ready is what a
    user needs to see."""
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
    """Of a container that serves `/healthz` and `/readyz` at the port of this name; five minutes to start."""
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
