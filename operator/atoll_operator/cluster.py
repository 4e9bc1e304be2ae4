"""The API client with the kinds that the operator uses."""

from __future__ import annotations

from typing import Any

from atoll_operator.api.group import GROUP, MANAGER, VERSION
from atoll_operator.kube.client import ApiClient, Resource
from atoll_operator.kube.errors import NotFound, Unreachable
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics

RESOURCES = {
    "TrainingRun": Resource(GROUP, VERSION, "trainingruns"),
    "LearnerUnit": Resource(GROUP, VERSION, "learnerunits"),
    "StatefulSet": Resource("apps", "v1", "statefulsets"),
    "Pod": Resource("", "v1", "pods"),
    "Service": Resource("", "v1", "services"),
    "ConfigMap": Resource("", "v1", "configmaps"),
    "Secret": Resource("", "v1", "secrets"),
    "PodDisruptionBudget": Resource("policy", "v1", "poddisruptionbudgets"),
    "Node": Resource("", "v1", "nodes"),
    "Event": Resource("", "v1", "events"),
    "Lease": Resource("coordination.k8s.io", "v1", "leases"),
    "TokenReview": Resource("authentication.k8s.io", "v1", "tokenreviews"),
    "SubjectAccessReview": Resource("authorization.k8s.io", "v1", "subjectaccessreviews"),
}


class Cluster(ApiClient):
    """See `ApiClient` for the options."""

    def __init__(self, credentials: Credentials, metrics: Metrics, **options: Any) -> None:
        count = metrics.api_errors.labels
        super().__init__(credentials, RESOURCES, MANAGER, lambda code: count(code).inc(), **options)

    async def check_served(self) -> None:
        """Raises Unreachable if the API server does not serve our kinds."""
        prefix = f"/apis/{GROUP}/{VERSION}"
        wanted = {resource.plural for resource in RESOURCES.values() if resource.group == GROUP}
        try:
            served = {each["name"] for each in (await self._call("GET", prefix))["resources"]}
        except NotFound:
            served = set()
        if missing := wanted - served:
            raise Unreachable(f"{prefix} does not serve {', '.join(sorted(missing))}; apply crds/ first")
