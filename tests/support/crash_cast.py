"""Who plays beside the operator in one namespace: learners, syncer, evaluator and Kueue."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from worldview import Object

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_UNIT
from atoll_operator.plan.pods.topology import slice_of
from atoll_operator.plan.unit.kueue import GATE, MANAGED
from atoll_runtime.contract import EXIT_RESTART

SYNCER_SECRET = "r-syncer-tls"
EVALUATOR_SECRET = "r-evaluator-tls"
RESULT = {"step": 50, "loss": 3.25, "tokens": 65536, "split": "heldout", "seconds": 2.5, "time": 1.7e9}
"""What the evaluator says."""
CROSSED = (404, 409, 422)
"""Answers to Kueue where the operator was faster."""


class Cast:
    """Acts when the namespace is looked at. `bench` is a Bench."""

    def __init__(self, bench: Any) -> None:
        self.syncer: dict[str, Any] = {}
        """What the run's syncer says, beside its units."""
        self._bench = bench
        self._report: dict[str, Any] = {}
        self._told: tuple[Any, ...] = ()
        """Identity, gangs, units and words of the last report."""
        self._evaluated: object = None
        """Identity of the evaluator that answers."""
        self._processes: dict[str, int] = {}
        """Uid of a pod to the incarnation that its container is of."""
        self._waiting: set[str] = set()
        """Uids of pods whose container waits to be told of a greater one."""

    def play(self, bodies: dict[str, list[Object]]) -> None:
        """Everybody's part, as the objects of the namespace are now."""
        self._queue(bodies["Pod"])
        self._learn(bodies["Pod"])
        self._sync(bodies)

    def end_container(self, pod: str, exit_code: int, words: str) -> None:
        """The container ends, and the kubelet starts it again; it waits for an incarnation of its own."""
        body = self._bench.get("Pod", pod)
        self._restart_container(body, exit_code, words)
        self._waiting.add(body["metadata"]["uid"])

    def _queue(self, pods: list[Object]) -> None:
        """Kueue's part: it admits every gang, and keeps each pod until its node has said that it ended."""
        for pod in pods:
            metadata, spec = pod["metadata"], pod["spec"]
            if "deletionTimestamp" not in metadata:
                wanted = {"metadata": {"finalizers": [MANAGED]}, "spec": {"schedulingGates": None}}
                due = {"name": GATE} in spec.get("schedulingGates", ())
            else:
                wanted = {"metadata": {"finalizers": None}}
                kept = MANAGED in metadata.get("finalizers", ())
                due = kept and spec.get("nodeName") not in self._bench.kubelet.lost
            try:
                if due:
                    self._bench.api.patch("Pod", self._bench.namespace, _name(pod), wanted)
            except Exception as error:
                if getattr(error, "status", 0) not in CROSSED:
                    raise

    def _learn(self, pods: list[Object]) -> None:
        """A process whose pod is told of a greater incarnation than its own ends, and the next one is of that."""
        for pod in pods:
            uid, told = pod["metadata"]["uid"], _incarnation(pod)
            own = self._processes.setdefault(uid, told)
            if own < told:
                if uid not in self._waiting:
                    self._restart_container(pod, EXIT_RESTART, "")
                self._waiting.discard(uid)
                self._processes[uid] = told

    def _restart_container(self, pod: Object, exit_code: int, words: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        message = f"incarnation {self._processes[pod['metadata']['uid']]}\n{words}"
        ended = {
            "exitCode": exit_code, "reason": "Error", "message": message, "startedAt": now, "finishedAt": now,
        }  # fmt: skip
        [old] = pod["status"]["containerStatuses"]
        new = {"restartCount": old["restartCount"] + 1, "lastState": {"terminated": ended}}
        new["state"] = {"running": {"startedAt": now}}
        status = {"containerStatuses": [old | new]}
        self._bench.kubelet.status(self._bench.namespace, pod["metadata"]["name"], status)

    def _sync(self, bodies: dict[str, list[Object]]) -> None:
        """The syncer's part: a unit learns while the containers of all its pods are of its incarnation."""
        secrets = {_name(secret): secret["metadata"]["resourceVersion"] for secret in bodies["Secret"]}
        if not bodies["TrainingRun"] or SYNCER_SECRET not in secrets:
            return
        [run] = bodies["TrainingRun"]
        self._evaluate(run, secrets.get(EVALUATOR_SECRET))
        pods = [pod for pod in bodies["Pod"] if "deletionTimestamp" not in pod["metadata"]]
        hosts = {_name(unit): _hosts(unit["spec"]) for unit in bodies["LearnerUnit"]}
        running = Counter(_gang(pod) for pod in pods if pod["status"]["phase"] == "Running")
        work = {gang for gang, count in running.items() if count == hosts.get(gang[0])}
        incarnations = {
            (_name(unit), unit.get("status", {}).get("incarnation")) for unit in bodies["LearnerUnit"]
        }
        identity = run["metadata"]["uid"], secrets[SYNCER_SECRET]
        told = identity, work & incarnations, incarnations, dict(self.syncer)
        if told == self._told:
            return
        if self._told[:1] != told[:1]:
            self._report = self._bench.serve(run)
        self._told = told
        units = self._bench.report(run)["units"]
        for name, incarnation in incarnations:
            if incarnation is None:  # no process of it was ever made
                units.pop(name, None)
        for name, unit in units.items():
            if (name, unit["incarnation"]) not in work:
                unit |= {"state": "Gone", "hosts": 0, "firstMergeTime": None}
        self._report.update(self.syncer, units=units)

    def _evaluate(self, run: Object, secret: str | None) -> None:
        """The evaluator's part: it answers from the moment that it has a certificate."""
        identity = run["metadata"]["uid"], secret
        if secret is None or identity == self._evaluated:
            return
        said = {"runUid": identity[0], "phase": "Waiting", "newest": RESULT, "evaluated": 1, "skipped": 0}
        self._bench.syncers.serve_evaluator(self._bench.namespace, "r", said)
        self._evaluated = identity


def _name(body: Object) -> str:
    return str(body["metadata"]["name"])


def _hosts(spec: Object) -> int:
    """Of a unit."""
    one = slice_of(spec["accelerator"], spec["topology"], spec.get("machineType"))
    return int(spec.get("slices", 1)) * one.hosts


def _incarnation(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION])


def _gang(pod: Object) -> tuple[str, int]:
    return pod["metadata"]["labels"][LABEL_UNIT], _incarnation(pod)
