"""A kubelet and scheduler played by the test."""

from __future__ import annotations

import contextlib
import threading

from apiserver import Api, Object, Refusal
from memory_accidents import ended, main, running
from urllib3.exceptions import HTTPError


class Kubelet:
    """Binds every pod, reports that it runs, and removes it when it is deleted, as kubelet and scheduler would."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = threading.Event()
        self.idle: set[str] = set()
        """Namespaces with pods that are not run."""
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
                runs = {"phase": "Running", **_container(running(), ready=True)}
                self._api.patch("Pod", namespace, name, {"metadata": seen, "status": runs}, "/status")

    def bind(self, namespace: str, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self._api.call("POST", self._api.path("Pod", namespace, name) + "/binding", binding)

    def status(self, namespace: str, name: str, status: Object) -> None:
        self._api.patch("Pod", namespace, name, {"status": status}, "/status")

    def fail(
        self, namespace: str, name: str, exit_code: int = 1, message: str = "", reason: str = "Error"
    ) -> None:
        phase = "Failed" if exit_code else "Succeeded"
        self.status(namespace, name, {"phase": phase, **_container(ended(exit_code, message, reason))})


def _container(state: Object, ready: bool = False) -> Object:
    one = main(0, state) | {"image": "runtime", "imageID": "", "ready": ready}
    return {"containerStatuses": [one], "conditions": [{"type": "Ready", "status": f"{ready}"}]}
