"""A test that plays kubelet and scheduler."""

from __future__ import annotations

import contextlib
import threading
import time

from apiserver import Api, Object, Refusal
from urllib3.exceptions import HTTPError


class Kubelet:
    """Binds every pod, says that it runs, and removes it when it is deleted, as kubelet and scheduler would."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = threading.Event()
        self.idle: set[str] = set()
        """Namespaces whose pods nobody runs."""
        self.namespaces: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="kubelet")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _work(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(Refusal, HTTPError):
                pods = self._api.call("GET", "/api/v1/pods")["items"] if self.namespaces - self.idle else []
                for pod in pods:
                    namespace = pod["metadata"]["namespace"]
                    if namespace in self.namespaces - self.idle:
                        self._tend(namespace, pod)

    def _tend(self, namespace: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        with contextlib.suppress(Refusal):
            if "deletionTimestamp" in pod["metadata"]:
                self._api.delete("Pod", namespace, name, grace=0)
            elif not pod["spec"].get("nodeName"):
                self.bind(namespace, name, "node-1")
            elif pod["status"]["phase"] == "Pending":
                seen = {"resourceVersion": pod["metadata"]["resourceVersion"]}  # it may have failed since
                self._api.patch("Pod", namespace, name, {"metadata": seen, "status": running()}, "/status")

    def bind(self, namespace: str, name: str, node: str) -> None:
        """As the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self._api.call("POST", self._api.path("Pod", namespace, name) + "/binding", binding)

    def status(self, namespace: str, name: str, status: Object) -> None:
        """What the kubelet reports."""
        self._api.patch("Pod", namespace, name, {"status": status}, "/status")

    def fail(
        self, namespace: str, name: str, exit_code: int = 1, message: str = "", reason: str = "Error"
    ) -> None:
        """The container ends."""
        ended = {
            "exitCode": exit_code, "reason": reason, "message": message, "finishedAt": now(), "startedAt": now(),
        }  # fmt: skip
        self.status(
            namespace,
            name,
            {"phase": "Failed" if exit_code else "Succeeded", **_container({"terminated": ended})},
        )


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _container(state: Object, ready: bool = False) -> Object:
    one = {
        "name": "main", "image": "runtime", "imageID": "", "restartCount": 0, "ready": ready, "state": state,
    }  # fmt: skip
    return {
        "containerStatuses": [one],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }


def running() -> Object:
    return {"phase": "Running", **_container({"running": {"startedAt": now()}}, ready=True)}
