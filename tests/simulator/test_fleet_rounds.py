"""Learners of given speeds, with the driver, service, client and training loop of the pods, in simulated time."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from atoll_runtime.contract import GraceSpec, OuterSpec, QuorumSpec
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.simulate.eventloop import Process
from atoll_runtime.simulate.fleet.rounds import World, outcome
from atoll_runtime.simulate.fleet.scenario import (
    DRIFT_STEPS,
    Scenario,
    Unit,
    clock_step,
    drift,
    waiting_goodput,
)
from atoll_runtime.simulate.network import SimNetwork, Wire
from atoll_runtime.simulate.shard import Stalled
from atoll_runtime.transport.messages import FetchRequest
from atoll_runtime.transport.transport import TransportError

MIX = (1.0, 1.0, 1.0, 1.0, 1.18, 1.18, 1.18, 1.18)


def scenario(
    *paces: float, spread: float = 0.0, steps: int = 80, quorum: int = 1, grace: float = 0.8, **outer: float
) -> Scenario:
    schedule = OuterSpec(**{"fragments": 8, "interval": 8, **outer})
    return Scenario(
        schedule,
        QuorumSpec(min=quorum, grace=GraceSpec(fraction=grace)),
        steps,
        tuple(map(Unit, paces)),
        spread,
    )


@pytest.mark.parametrize("interval", [8, 64])
def test_one_learner_never_stops_and_loses_no_step_that_it_makes_while_a_contribution_is_under_way(
    interval: int,
) -> None:
    found = outcome(scenario(1.0, interval=interval, steps=16 * interval), 0)
    assert found.goodput == 1
    assert found.mean_members == 1
    assert found.discarded == {}
    assert found.merged_share + found.in_flight == pytest.approx(1.0) and found.merged_share > 0.93


@pytest.mark.parametrize(("paces", "spread"), [((1.0, 1.25), 0.0), (MIX, 0.1)])
def test_learners_that_wait_lose_what_the_slowest_costs_and_ours_lose_nothing(
    paces: tuple[float, ...], spread: float
) -> None:
    even = sum(paces) / len(paces) / max(paces)  # the slowest works all the time
    every = scenario(*paces, spread=spread, quorum=len(paces), steps=400)
    control = waiting_goodput(every, 0)
    assert control == pytest.approx(even, abs=0.01) if spread == 0 else even - 0.12 < control < even
    bare = replace(every, outer=OuterSpec(fragments=8, interval=8, overlap=1))
    assert waiting_goodput(bare, 0) < control - 0.1  # the exchange is not hidden
    assert outcome(replace(every, steps=80), 0).goodput == 1


def test_without_grace_a_quorum_of_one_merges_few_and_with_grace_almost_as_many_as_waiting_for_all() -> None:
    alone, grace, everyone = (
        outcome(scenario(*MIX, spread=0.1, steps=200, quorum=quorum, grace=fraction), 0)
        for quorum, fraction in ((1, 0.0), (1, 0.8), (8, 0.8))
    )
    assert alone.mean_members < 2 < 7.5 < grace.mean_members <= everyone.mean_members == 8
    assert alone.merged_share < 0.5 * grace.merged_share
    assert everyone.merged_share == pytest.approx(grace.merged_share, abs=0.01)
    assert "Missed" not in everyone.discarded
    # What came too late for one round stays in the learner for the next, until it is too old.
    assert alone.discarded["Missed"] > 0.2 > 0.02 > grace.discarded.get("Missed", 0.0)
    assert alone.goodput == grace.goodput == everyone.goodput == 1


@pytest.mark.parametrize(
    ("paces", "outer", "step", "least"),
    [
        ((1.0, 1.0, 1.0), {}, 1.0, 0.95),
        ((1.0, 2.0), {}, 2.0, 0.95),
        ((1.0, 2.0), {"slow_factor": 1.5}, 1.0, 0.95),
        ((1.0, 2.0, 9.0), {}, 2.0, 0.95),
        # The first steps are faster: until the slowest has reported, the others set the clock.
        ((1.0, 2.0, 9.0), {"slow_factor": 5.0}, 9.0, 0.65),
        ((1.0, 2.0, 9.0), {"guard": False}, 9.0, 0.65),
        ((1.0, 6.0, 9.0), {}, 9.0, 0.65),
    ],
)
def test_the_clock_keeps_the_pace_of_the_slowest_that_the_guard_lets_set_it(
    paces: tuple[float, ...], outer: dict[str, float], step: float, least: float
) -> None:
    asked = scenario(*paces, **outer)
    assert clock_step(paces, asked.outer) == step
    assert least * step < outcome(asked, 0).seconds / 80 < 1.05 * step


def test_a_run_that_lacks_its_quorum_says_where_it_stands() -> None:
    cut_off = Unit(1.0, Wire(0.2, outages=((40.0, math.inf),)))
    both = replace(scenario(quorum=2, steps=60), units=(Unit(1.0), cut_off))
    with pytest.raises(Stalled, match=r"the clock stands at 4\d of 60 steps"):
        outcome(both, 0)


def test_a_fetch_ends_at_the_deadline_of_a_transfer() -> None:
    world, ended = World(scenario(1.0, fragments=1, interval=50, steps=700)), list[float]()
    host = Process(world.loop)
    network = SimNetwork(host, world.shard, Wire(700.0, codec="bf16"))
    request = FetchRequest(unit="a", incarnation=1, fragment=0, version=0, start=0, stop=1, codec="bf16")

    async def fetch() -> None:
        with pytest.raises(TransportError):
            await network.fetch(request, lambda: None)
        ended.append(world.loop.now)

    world.loop.plan(1.0, host, host.spawn, fetch())
    assert len(list(world.merges())) == 14
    assert ended == [1.0 + TRANSFER_SECONDS]


def test_a_drawn_pace_lasts_and_its_spread_is_the_one_asked_for() -> None:
    steps = np.fromiter(drift(2.0, 0.1, np.random.default_rng(0)), float, 2000 * DRIFT_STEPS)
    changes = np.flatnonzero(np.diff(steps)) + 1
    assert changes[0] <= DRIFT_STEPS
    assert set(np.diff(changes)) == {DRIFT_STEPS}
    drawn = steps[changes]
    assert drawn.mean() == pytest.approx(2.0, rel=0.01)
    assert drawn.std() == pytest.approx(0.2, rel=0.05)


def test_it_needs_none_of_the_libraries_that_train_merge_or_store() -> None:
    code = (
        "import sys\n"
        "for name in ('jax', 'numba', 'orbax', 'tensorstore', 'fsspec', 'grpc', 'aiohttp', 'kopf'):\n"
        "    sys.modules[name] = None\n"
        "from atoll_cli.__main__ import main\n"
        "sys.exit(main(['simulate', 'links', '--links', '1,5', '--steps', '50', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"member_share"' in done.stdout
