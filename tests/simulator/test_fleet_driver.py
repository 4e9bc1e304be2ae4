"""The model of a fleet decides what the syncer's driver and the learners' client decide in the same simulated time."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contracts import unit_contract
from sim_island import NumberlessIsland
from sim_world import contract_of, layout_of

from atoll_runtime.contract import GraceSpec
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.start import Start
from atoll_runtime.protocol.effects import Member
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.eventloop import SimLoop
from atoll_runtime.simulate.fleet.learner import TOKENS
from atoll_runtime.simulate.fleet.rounds import World
from atoll_runtime.simulate.fleet.scenario import Costs, Life, Scenario, simulated_rules
from atoll_runtime.simulate.network import Party
from atoll_runtime.simulate.training.learner import Way
from atoll_runtime.simulate.training.shard import Shard, WorkSeconds

Decision = tuple[int, int, tuple[Member, ...]]
"""Step, fragment, and all that the syncer knows of each member: incarnation, weight, steps, tokens, anchor."""

FRAGMENTS, STEPS = 4, 60
MOMENT = 1e-6
"""Seconds between two steps. The model takes none for what a program does besides its work."""
COSTS = Costs(push=0.2331, merge=0.1093, write=0.0717, fetch=0.1873)
TRIO = (Life("a", 1.0), Life("b", 1.13173), Life("c", 1.27091))
"""Uneven, so that no two things that decide something happen at the same moment."""


def rules(quorum: int, overlap: int = 2, fraction: float = 0.8) -> Rules:
    grace = GraceSpec(fraction=fraction)
    return simulated_rules(
        fragments=FRAGMENTS, interval=8, overlap=overlap, quorum=quorum, grace=grace, steps=STEPS
    )


@pytest.mark.parametrize(
    ("asked", "lives"),
    [
        pytest.param(rules(quorum=3), TRIO, id="everybody-is-waited-for"),
        pytest.param(rules(quorum=1), TRIO, id="grace"),
        pytest.param(rules(quorum=1, fraction=0.0), TRIO, id="no-grace"),
        pytest.param(rules(quorum=2, overlap=1), TRIO, id="one-round-at-a-time"),
        pytest.param(rules(quorum=1), (*TRIO[:2], replace(TRIO[2], last=20)), id="a-unit-is-lost"),
    ],
)
def test_model_and_driver_make_the_same_merges_of_the_same_members(
    asked: Rules, lives: tuple[Life, ...]
) -> None:
    found = driven(asked, lives)
    assert found == modelled(asked, lives)
    assert len(found) >= STEPS // 2 - FRAGMENTS
    assert {"a", "b"} <= {member.unit for _, _, members in found for member in members}


def test_the_comparison_sees_a_unit_that_is_slower_by_a_tenth() -> None:
    asked, slower = rules(quorum=1, fraction=0.0), (*TRIO[:2], replace(TRIO[2], pace=1.4))
    assert driven(asked, TRIO) != modelled(asked, slower)


def modelled(asked: Rules, lives: tuple[Life, ...]) -> list[Decision]:
    world = World(Scenario(asked, lives, costs=COSTS), np.random.default_rng(0))
    return [(each.round.step, each.round.fragment, each.members) for each in world.decisions()]


def driven(asked: Rules, lives: tuple[Life, ...]) -> list[Decision]:
    """What the real driver merges, until no round is in flight at the target."""
    loop = SimLoop(WorkSeconds(COSTS))
    loop.HOP = 0.0
    shape: Any = SimpleNamespace(rules=replace(asked, cut_interval=10**6), sizes=((1,) * FRAGMENTS,))
    layout = layout_of(shape)
    first = {name: np.zeros(shape, np.float32) for name, shape in layout.shapes.items()}
    shard = Shard(loop, contract_of(shape), asked, layout, first)
    shard.start()
    for life in lives:
        loop.plan(life.begins, None, Unit, shard, life)
    try:
        while not shard.finished:
            assert loop.advance() and loop.now < 4 * STEPS
    finally:
        loop.close()
        shard.close()
    return [(round_id.step, round_id.fragment, members) for round_id, members in shard.tape.merges.items()]


class Unit(NumberlessIsland, Party):
    """A learner with the real training loop and client, and nothing to train; it is seeded with what is current."""

    tokens = TOKENS

    def __init__(self, shard: Shard, life: Life) -> None:
        super().__init__(shard.loop)
        self._shard, self._life, self.cursor = shard, life, 0
        self.spawn(self._train())

    async def _train(self) -> None:
        shard, life = self._shard, self._life
        while shard.service is None:
            await asyncio.sleep(MOMENT)
        run, layout = shard._run, shard._layout
        contract = unit_contract(life.unit, incarnation=life.incarnation)
        clock, whole = self.loop.time, [(0, 1)] * FRAGMENTS
        way, lineage = Way(self, shard, COSTS), shard.service.driver.journal.lineage
        client = SyncerClient(run, contract, layout, whole, [1] * FRAGMENTS, [way], clock)
        versions = tuple(each.version for each in shard.fragments)
        client.connect(versions, shard.machine.step, "", [lineage])
        while not client.answered:
            await asyncio.sleep(MOMENT)
        me: Any = self
        start = Start(versions, versions, shard.machine.step)
        loop = Loop(run, me, me, client, me, me, start, threading.Event(), me, clock=clock)
        while True:
            proposal = loop.propose()
            if any(life.last is not None and ask.round.step > life.last for ask in proposal.pulls.values()):
                self.kill()
                return
            values = proposal.values(FRAGMENTS)
            agreed = proposal.agreed(values, values)
            if agreed.ending is not Ending.NONE:
                return
            _, self.cursor = loop.begin(agreed)
            await asyncio.sleep(life.pace - MOMENT)
            loop.finish(1.0, self.cursor)
            await asyncio.sleep(MOMENT)

    # as `Fragments`

    def extract(self, theta: object, number: int) -> Any:
        whole = SimpleNamespace(index=(slice(0),), data=np.zeros(1, np.float32))
        return SimpleNamespace(addressable_shards=[whole])

    def receive(self, theta: object, number: int, part: np.ndarray) -> None:
        pass
