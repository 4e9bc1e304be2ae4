"""One namespace with a run `r` whose operator dies at chosen writes and is started again."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash_proxy import Fault, Gate, Proxy, When
from operator_forks import ForkedOperator
from worldview import Eyes, Object, Occasion, differences, essence, occasions

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_UNIT
from atoll_runtime.contract import EXIT_RESTART

SYNCER_SECRET = "r-syncer-tls"
WAIT_SECONDS = 120
"""For a chapter; a bound for a machine that others use too."""
LASTING_SECONDS = 0.3
"""For which a world has to stay as it should be: what is done twice is done at once."""
CALM_SECONDS = 3.0
"""For which the world without faults has to stay as it is before that counts as the end of a chapter. A unit whose pods
come up is looked at after up to 1 s, its run up to 1 s after that, and on a busy machine each takes its time."""

End = tuple[dict[str, dict[str, Object]], Counter[Occasion]]
"""Objects by kind and name, and Events, as they are when a chapter is over."""


class World:
    """Use from one thread. `bench` is a Bench of conftest that makes ForkedOperators."""

    def __init__(self, bench: Any, proxy: Proxy, eyes: Eyes, folder: Path) -> None:
        self.bench = bench
        self.api = bench.api
        self.namespace: str = bench.namespace
        self.syncer: dict[str, Any] = {}
        """What the run's syncer says, beside its units."""
        self._proxy, self._eyes, self._folder = proxy, eyes, folder
        self._starts = itertools.count()
        self._report: dict[str, Any] = {}
        self._told: object = None
        """Run and gangs of the last report."""
        self._processes: dict[str, int] = {}
        """Uid of a pod to the incarnation that its container is of."""
        self._waiting: set[str] = set()
        """Uids of pods whose container waits to be told of a greater one."""
        self._gate, kubeconfig = self._new_gate()
        self._operator: ForkedOperator = bench.operator(
            KUBECONFIG=str(kubeconfig),
            ATOLL_HEALTH_PORT="0",
            ATOLL_LEASE_NAMESPACE="atoll-system",
            # As of a container that is started again in its pod: it need not wait until its own lease has run out.
            ATOLL_IDENTITY=self.namespace,
        )

    def get(self, kind: str, name: str) -> Object:
        return dict(self.bench.get(kind, name))

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.api.list(kind, self.namespace)}

    def change(self, **spec: Any) -> None:
        """The run's spec."""
        self.api.patch("TrainingRun", self.namespace, "r", {"spec": spec})

    def pod(self, unit: str, host: int) -> str:
        """Name of the unit's pod on this host."""
        [name] = [name for name in self.bench.pods(unit) if name.endswith(f"-{host}")]
        return str(name)

    def end_container(self, pod: str, exit_code: int, words: str) -> None:
        """The container ends, and the kubelet starts it again; it waits for an incarnation of its own."""
        body = self.get("Pod", pod)
        self._restart_container(body, exit_code, words)
        self._waiting.add(body["metadata"]["uid"])

    def wait_for_pods(self, count: int) -> None:
        """Until so many are there, or the operator is dead."""
        self.bench.until(
            f"{count} pods", lambda: not self._operator.alive or len(self.bench.pods()) == count, 60
        )

    def tell(self, act: Callable[[World], None], done: Callable[[World], bool]) -> tuple[End, int]:
        """A chapter without a fault: how it ends, and how many writes it took."""
        fault = self._gate.fault = Fault(0, "before", self._operator.shoot)
        act(self)
        deadline = time.monotonic() + WAIT_SECONDS
        end, since = self._look(), time.monotonic()
        while not done(self) or time.monotonic() < since + CALM_SECONDS:
            assert time.monotonic() < deadline, f"no end within {WAIT_SECONDS} s\n{self.bench.describe()}"
            assert self._operator.alive, f"the operator ended by itself; see {self._operator.log}"
            now = self._look()
            if now != end:
                end, since = now, time.monotonic()
        fault.call_off()
        return end, fault.seen

    def crash(self, act: Callable[[World], None], expected: End, at: int, when: When) -> str:
        """The chapter again, with the operator's death at a write; returns that write, empty where there are fewer.

        Raises:
            AssertionError: the chapter does not end as expected.
        """
        fault = self._gate.fault = Fault(at, when, self._operator.shoot)
        act(self)
        deadline = time.monotonic() + WAIT_SECONDS
        since: float | None = None
        while True:
            if not self._operator.alive:
                assert fault.write, f"the operator ended by itself; see {self._operator.log}"
                self._start_again()
            wrong = _wrong(expected, self._look())
            since = None if wrong else since or time.monotonic()
            lasted = since is not None and time.monotonic() > since + LASTING_SECONDS
            if lasted and (not fault.call_off() or self._gate.fault is not fault):
                return fault.write
            told = f"killed {when} {fault.write or f'write {at}, which never came'}"
            assert time.monotonic() < deadline, "\n".join((f"{told}: after {WAIT_SECONDS} s", *wrong[:20]))

    def _start_again(self) -> None:
        self._operator.kill()
        self._gate, kubeconfig = self._new_gate()
        self._operator.environment["KUBECONFIG"] = str(kubeconfig)
        self._operator.start()

    def _new_gate(self) -> tuple[Gate, Path]:
        kubeconfig = self._folder / f"{self.namespace}-{next(self._starts)}"
        return self._proxy.gate(kubeconfig), kubeconfig

    def _look(self) -> End:
        """The namespace as it is, after learners and syncer have done their part."""
        bodies = self._eyes.look(self.namespace)
        self._learn(bodies["Pod"])
        self._sync(bodies)
        return essence(self.namespace, bodies), occasions(bodies["Event"])

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
        self.bench.kubelet.status(self.namespace, pod["metadata"]["name"], status)

    def _sync(self, bodies: dict[str, list[Object]]) -> None:
        """The syncer's part: a unit learns while the containers of all its pods are of its incarnation."""
        if not bodies["TrainingRun"] or all(_name(secret) != SYNCER_SECRET for secret in bodies["Secret"]):
            return
        [run] = bodies["TrainingRun"]
        pods = [pod for pod in bodies["Pod"] if "deletionTimestamp" not in pod["metadata"]]
        work = {_gang(pod) for pod in pods if pod["status"]["phase"] == "Running"}
        work -= {_gang(pod) for pod in pods if pod["status"]["phase"] != "Running"}
        incarnations = {
            (_name(unit), unit.get("status", {}).get("incarnation")) for unit in bodies["LearnerUnit"]
        }
        told = run["metadata"]["uid"], work & incarnations, incarnations, dict(self.syncer)
        if told == self._told:
            return
        if self._told is None or self._told[0] != told[0]:
            self._report = self.bench.serve(run)
        self._told = told
        units = self.bench.report(run)["units"]
        for name, unit in units.items():
            if (name, unit["incarnation"]) not in work:
                unit |= {"state": "Gone", "firstMergeTime": None}
        self._report.update(self.syncer, units=units)


def _name(body: Object) -> str:
    return str(body["metadata"]["name"])


def _incarnation(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION])


def _gang(pod: Object) -> tuple[str, int]:
    return pod["metadata"]["labels"][LABEL_UNIT], _incarnation(pod)


def _wrong(expected: End, found: End) -> list[str]:
    """All that is not as expected. An Event may be lost with its process, but none is told twice."""
    more = [f"Event {occasion} too often" for occasion in found[1] - expected[1]]
    return [*differences(expected[0], found[0]), *more]
