"""One namespace with a run `r` whose operator dies at chosen writes and is started again."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash_cast import Cast
from crash_proxy import Fault, Gate, Proxy, When
from operator_forks import ForkedOperator
from worldview import Eyes, Object, Occasion, differences, essence, occasions

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
    """Use from one thread. `bench` is a Bench that makes ForkedOperators."""

    def __init__(self, bench: Any, proxy: Proxy, eyes: Eyes, folder: Path) -> None:
        self.bench = bench
        self.api = bench.api
        self.namespace: str = bench.namespace
        self.cast = Cast(bench)
        self._proxy, self._eyes, self._folder = proxy, eyes, folder
        self._starts = itertools.count()
        self._nodes: list[str] = []
        self.bench.kubelet.scattered.add(self.namespace)
        self._gate, kubeconfig = self._new_gate()
        self._operator: ForkedOperator = bench.operator(
            KUBECONFIG=str(kubeconfig),
            ATOLL_HEALTH_PORT="0",
            ATOLL_LEASE_NAMESPACE="atoll-system",
            # As of a container that is started again in its pod: it need not wait until its own lease has run out.
            ATOLL_IDENTITY=self.namespace,
        )

    def close(self) -> None:
        """Takes the world's nodes away; all else is its namespace's."""
        kubelet = self.bench.kubelet
        kubelet.scattered.discard(self.namespace)
        kubelet.lost.difference_update(self._nodes)
        for name in self._nodes:
            self.api.call("DELETE", f"/api/v1/nodes/{name}")

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

    def taint_node(self, pod: str, taint: str, lost: bool = False) -> None:
        """The node of this pod bears a taint; no pod of one that is `lost` is heard of again."""
        name = self.get("Pod", pod)["spec"]["nodeName"]
        if lost:
            self.bench.kubelet.lost.add(name)
        spec = {"taints": [{"key": taint, "effect": "NoSchedule"}]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
        self.api.call("POST", "/api/v1/nodes", node)
        self._nodes.append(name)

    def mend_nodes(self) -> None:
        """They are as good as new."""
        self.bench.kubelet.lost.difference_update(self._nodes)
        for name in self._nodes:
            change = {"spec": {"taints": None}}
            self.api.call("PATCH", f"/api/v1/nodes/{name}", change, "application/merge-patch+json")

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

    def crash(
        self,
        act: Callable[[World], None],
        expected: End,
        at: int,
        when: When,
        sites: frozenset[str] = frozenset(),
    ) -> str:
        """The chapter again, with the operator's death at a write; returns that write, empty where there are fewer.

        Args:
            sites: where the operator dies whatever the number of the write.

        Raises:
            AssertionError: the chapter does not end as expected.
        """
        fault = self._gate.fault = Fault(at, when, self._operator.shoot, sites)
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
        """The namespace as it is, after all others have done their part."""
        bodies = self._eyes.look(self.namespace)
        self.cast.play(bodies)
        return essence(self.namespace, bodies), occasions(bodies["Event"])


def _wrong(expected: End, found: End) -> list[str]:
    """All that is not as expected. An Event may be lost with its process, but none is told twice."""
    more = [f"Event {occasion} too often" for occasion in found[1] - expected[1]]
    return [*differences(expected[0], found[0]), *more]
