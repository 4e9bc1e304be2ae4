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
                node = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": node}
                self._api.call("POST", self._api.path("Pod", namespace, name) + "/binding", binding)
            elif pod["status"]["phase"] == "Pending":
                seen = {"resourceVersion": pod["metadata"]["resourceVersion"]}  # it may have failed since
                runs = {"phase": "Running", **_container(running(), ready=True)}
                self._api.patch("Pod", namespace, name, {"metadata": seen, "status": runs}, "/status")

    def fail(self, namespace: str, name: str, exit_code: int = 1, reason: str = "Error") -> None:
        status = {"phase": "Failed", **_container(ended(exit_code, "", reason))}
        self._api.patch("Pod", namespace, name, {"status": status}, "/status")


def _container(state: Object, ready: bool = False) -> Object:
    one = main(0, state) | {"image": "runtime", "imageID": "", "ready": ready}
    return {"containerStatuses": [one], "conditions": [{"type": "Ready", "status": f"{ready}"}]}
