"""The election: real candidates on one loop whose clocks differ, and never two that lead."""

from __future__ import annotations

import asyncio
import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from leaping import leap
from memory_apiserver import Server
from memory_client import MemoryCluster

from atoll_operator.kube.errors import Unreachable
from atoll_operator.kube.lease import Leadership, lease_name

SECONDS = 10


def test_operators_of_different_namespaces_do_not_exclude_each_other() -> None:
    names = [lease_name("o", namespaces) for namespaces in ((), ["a"], ["b"], ["a", "b"])]
    assert names[0] == "o" and len(set(names)) == 4
    assert names[3] == lease_name("o", ["b", "a"])


class World:
    """An API server, and who leads."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.server = Server(self.dice)
        self.led: set[str] = set()

    async def watch(self, candidates: list[Candidate], seconds: float) -> None:
        """Samples who leads; two at a time are an error."""
        for _ in range(int(seconds / 0.05)):
            await asyncio.sleep(0.05)
            leading = [each.name for each in candidates if each.leadership.leads()]
            assert len(leading) <= 1, leading
            self.led.update(leading)


class Candidate(MemoryCluster):
    """An operator, whose clock runs at `rate`, and its client, which loses all while it is cut off."""

    def __init__(self, world: World, name: str, rate: float = 1.0) -> None:
        super().__init__(world.server)
        self.name, self.cut_off = name, False
        offset, loop = world.dice.uniform(-1e6, 1e6), asyncio.get_running_loop()
        self.leadership = Leadership(
            self, namespace="ns", name="o", identity=name, seconds=SECONDS, labels={},
            clock=lambda: offset + rate * loop.time(),
        )  # fmt: skip
        self.task = asyncio.create_task(self.leadership.hold(self._work))

    async def _work(self) -> None:
        await asyncio.Event().wait()

    async def _travel(self, lost: float, how: str) -> None:
        await asyncio.sleep(self.server.random.uniform(0.0, 2.0 if self.cut_off else 0.1))
        if self.cut_off:
            raise Unreachable("cut off")

    async def end(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rates=st.lists(st.floats(0.9, 1.1), min_size=2, max_size=4))
def test_never_two_lead_whatever_clocks_show_and_whoever_is_cut_off(seed: int, rates: list[float]) -> None:
    async def work() -> None:
        world = World(seed)
        candidates = [Candidate(world, str(number), rate) for number, rate in enumerate(rates)]
        for _ in range(30):
            for each in candidates:
                each.cut_off = world.dice.random() < 0.3
            await world.watch(candidates, world.dice.uniform(0.0, 8.0))
        world.led.clear()
        for each in candidates:
            each.cut_off = False
        await world.watch(candidates, 2 * SECONDS)
        assert world.led, "whoever was cut off stands for it again"
        for each in candidates:
            await each.end()

    leap(work())


def test_a_lease_is_taken_when_it_has_not_changed_for_as_long_as_its_holder_said() -> None:
    async def work() -> None:
        world = World(1)
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 30}
        world.server.create({"kind": "Lease", "metadata": {"name": "o", "namespace": "ns"}, "spec": spec})
        one = Candidate(world, "one")
        await world.watch([one], 29.0)
        assert not world.led
        await world.watch([one], 3.0)
        assert world.led == {"one"}
        await one.end()

    leap(work())
