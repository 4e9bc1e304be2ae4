"""The simulator and the real syncer, with real processes, decide the same about the same learners and kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import protocol_parties
import pytest

from atoll_runtime.contract import OuterSpec, QuorumSpec, RunContract, TargetSpec, dump, identity
from atoll_runtime.protocol.effects import Member, Merge
from atoll_runtime.protocol.events import Persisted
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.tape import Decided
from atoll_runtime.replay import replay
from atoll_runtime.replay.reader import read
from atoll_runtime.simulate.fleet.rounds import World
from atoll_runtime.simulate.fleet.scenario import Costs, Life, Scenario

pytestmark = pytest.mark.timeout(600)

STEPS = 30
PACE = 0.05
TAPE = (
    Life("a", PACE),
    Life("b", PACE, last=10),
    Life("c", PACE, begins=20.0, last=20),
    Life("b", PACE, begins=40.0, incarnation=2),
)
"""b is killed when it is asked for step 11, c replaces it and is killed at step 21, b comes back. Each begins once the
one before is dead; in simulated time, well after that."""

Decision = tuple[int, int, tuple[Member, ...]]
"""Step, fragment, and everything that the syncer knows of each member: incarnation, weight, steps, tokens, anchor."""


@pytest.fixture(name="learners")
def learners_fixture() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.wait(10)


AT_ONCE = Costs(push=0.0)
"""A learner is not killed while its contribution is under way."""


def decision(round_id: RoundId, members: tuple[Member, ...]) -> Decision:
    """Without the attempt: how often a round was tried depends on how long a process takes to start."""
    return round_id.step, round_id.fragment, members


def simulated(run: RunContract) -> list[Decision]:
    world = World(Scenario(Rules.of(run), TAPE, waits=True, costs=AT_ONCE), np.random.default_rng(0))
    return [decision(each.round, each.members) for each in world.decisions()]


def recorded(tape: Path) -> list[Decision]:
    """Every merge of the real syncer that became durable, from its event tape."""
    frozen: dict[RoundId, tuple[Member, ...]] = {}
    found = []
    for entry in (stored.entry for stored in read(tape)):
        if not isinstance(entry, Decided):
            continue
        for effect in entry.decisions:
            if isinstance(effect, Merge):
                frozen[effect.round] = effect.members
        if isinstance(entry.event, Persisted):
            found.append(decision(entry.event.round, frozen[entry.event.round]))
    return found


def test_the_simulator_and_the_real_syncer_make_the_same_merges_of_the_same_members(
    make_run: Any, authority: Any, syncer: Any, eventually: Any, tmp_path: Path, learners: Any
) -> None:
    """Nothing is left to the wall clock. At any time exactly K = 2 learners answer, and a round needs both, so it is
    the tape and not who is faster that tells its members; a round that waits for the next learner's process only waits.
    With τ = 1 a learner makes step t between the merges t − 1 and t, so its counts are the same on any machine.
    """
    run = make_run(
        outer=OuterSpec(fragments=4, interval=4, overlap=1, learning_rate=1.0, momentum=0.0),
        quorum=QuorumSpec(min=2),
        target=TargetSpec(global_steps=STEPS),
    )
    ca = authority("walk")
    process = syncer(run, ca.issue("syncer", identity("default", "walk", "syncer", "walk-syncer")))
    (tmp_path / "run.json").write_text(dump(run))
    script = Path(protocol_parties.__file__).with_name("gated_learner.py")

    for n, life in enumerate(TAPE):
        tls = ca.issue(life.unit, identity("default", "walk", "unit", life.unit))
        last = [] if life.last is None else [str(life.last)]
        with (tmp_path / "learners.log").open("ab") as log:
            arguments = [str(tmp_path / "run.json"), str(tls), life.unit, str(life.incarnation), *last]
            learners.append(
                subprocess.Popen([sys.executable, str(script), *arguments], stdout=log, stderr=log)
            )
        if life.last is not None:
            died = eventually(lambda: learners[-1].poll(), 150)
            assert died == -signal.SIGKILL, (TAPE[n], (tmp_path / "learners.log").read_text())
    assert [learners[0].wait(150), learners[-1].wait(150)] == [0, 0]
    status = eventually(lambda: (s := process.status()) and s.phase == "Finished" and s)
    assert process.end(signal.SIGTERM) == 0

    tape = process.folder / "volume/tape"
    real = recorded(tape)
    assert real == simulated(run)
    assert [step for step, _, _ in real] == list(range(1, STEPS + 1))
    members = [[(each.unit, each.incarnation) for each in decided[2]] for decided in real]
    assert members == 10 * [[("a", 1), ("b", 1)]] + 10 * [[("a", 1), ("c", 1)]] + 10 * [[("a", 1), ("b", 2)]]
    assert status.rounds == STEPS
    assert replay(tape).difference is None


def test_the_comparison_sees_a_learner_that_is_killed_a_step_later(make_run: Any) -> None:
    run = make_run(
        outer=OuterSpec(fragments=4, interval=4, overlap=1),
        quorum=QuorumSpec(min=2),
        target=TargetSpec(global_steps=STEPS),
    )
    later = (TAPE[0], replace(TAPE[1], last=11), *TAPE[2:])
    other = World(Scenario(Rules.of(run), later, waits=True, costs=AT_ONCE), np.random.default_rng(0))
    differing = [
        step
        for (step, _, members), each in zip(simulated(run), other.decisions(), strict=True)
        if members != each.members
    ]
    assert differing[0] == 11
