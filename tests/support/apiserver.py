"""A client of the API server for an administrator."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from urllib3.exceptions import HTTPError

from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import ESTABLISHED
from atoll_local.paths import cluster_wide, source_root

Object = dict[str, Any]
GROUPS = {
    "TrainingRun": "/apis/atoll.dev/v1alpha1",
    "LearnerUnit": "/apis/atoll.dev/v1alpha1",
    "StatefulSet": "/apis/apps/v1",
    "Deployment": "/apis/apps/v1",
    "PodDisruptionBudget": "/apis/policy/v1",
}
"""Paths of the groups of kinds that are not in the core group."""
CLUSTER_SCOPED = ("Namespace", "Node", "PersistentVolume")


class Refusal(Exception):
    """A refusal by the API server. The text is its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """A client with an administrator's certificate, or with the token of another kubeconfig."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path | None = None) -> None:
        self.server = plane.server
        client = config.new_client_from_config(str(kubeconfig or plane.kubeconfig))
        token = client.configuration.get_api_key_with_prefix("BearerToken")
        self._login = {"Authorization": token} if token else {}
        self._pool = client.rest_client.pool_manager

    def call(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> Object:
        """Tries again for a minute while the server does not answer or asks for another try."""
        data = None if body is None else json.dumps(body)
        # Closed, so that no socket outlives its test.
        headers = {"Content-Type": kind, "Connection": "close", **self._login}
        url, deadline = self.server + path, time.monotonic() + 60
        while True:
            try:
                answer = self._pool.request(method, url, body=data, headers=headers, timeout=30)
                found = dict(answer.json())
            except (HTTPError, json.JSONDecodeError):  # JSONDecodeError: while it starts
                if time.monotonic() > deadline:
                    raise
            else:
                if answer.status < 400:
                    return found
                # A definition that was just applied, or an API server that is not ready.
                if answer.status not in (429, 503) or time.monotonic() > deadline:
                    raise Refusal(answer.status, found["message"])
            time.sleep(0.1)

    def path(self, kind: str, namespace: str, name: str = "") -> str:
        place = "" if kind in CLUSTER_SCOPED else f"/namespaces/{namespace}"
        path = f"{GROUPS.get(kind, '/api/v1')}{place}/{kind.lower()}s"
        return f"{path}/{name}" if name else path

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.call("GET", self.path(kind, namespace, name))

    def list(self, kind: str, namespace: str) -> list[Object]:
        return list(self.call("GET", self.path(kind, namespace))["items"])

    def create(self, body: Object, namespace: str, query: str = "") -> Object:
        return self.call("POST", self.path(body["kind"], namespace) + query, body)

    def patch(self, kind: str, namespace: str, name: str, change: Object, subresource: str = "") -> Object:
        path = self.path(kind, namespace, name) + subresource
        return self.call("PATCH", path, change, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, grace: int | None = None) -> Object:
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        return self.call("DELETE", self.path(kind, namespace, name), body)


def with_token(
    plane: ControlPlane,
    api: Api,
    path: Path,
    account: str = "atoll-operator",
    namespace: str = "atoll-system",
) -> Path:
    """Writes a kubeconfig with the rights of a service account."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    answer = api.call("POST", f"{api.path('ServiceAccount', namespace, account)}/token", request)
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    path.write_text(yaml.safe_dump(config))
    return path


def install(plane: ControlPlane) -> None:
    """Apply our kustomize base, with the rights of its overlay for the whole cluster. Wait until its definitions are
    served."""
    for folder in (source_root() / "manifests", cluster_wide(plane.folder / "wide")):
        plane.kubectl("apply", "--server-side", "-k", str(folder))
    readers = (f"--group=system:serviceaccounts:{name}" for name in ("atoll-system", "atoll-narrow"))
    role = "--clusterrole=atoll-metrics-reader-atoll-system"
    plane.kubectl("create", "clusterrolebinding", "metrics-readers", role, *readers)
    plane.kubectl("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
