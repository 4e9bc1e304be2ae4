"""Where the API server has the nine kinds that we touch."""

from __future__ import annotations

from collections.abc import Mapping

from atoll_operator.api.group import API_VERSION

OUR_PREFIX = f"/apis/{API_VERSION}"
PLURALS: Mapping[str, tuple[str, str]] = {
    "TrainingRun": (OUR_PREFIX, "trainingruns"),
    "LearnerUnit": (OUR_PREFIX, "learnerunits"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
}


def collection(kind: str, namespace: str) -> str:
    """All objects of a namespace, or of the cluster where that is empty."""
    prefix, plural = PLURALS[kind]
    return f"{prefix}/namespaces/{namespace}/{plural}" if namespace else f"{prefix}/{plural}"


def item(kind: str, namespace: str, name: str) -> str:
    """One object."""
    return f"{collection(kind, namespace)}/{name}"
