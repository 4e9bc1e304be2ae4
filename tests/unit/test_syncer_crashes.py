"""The journal's writer is killed at every single change of its volume, also with a loss of power.

A fixed script of merges is played on a real `Journal`, which runs on the disk of the schedules. Each time that disk
kills the writer at another change. The journal is then resumed from what is left, or from what a loss of power would
leave, and the rest of the script is played there.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_disk import Mount, SimDisk

from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.simulate.eventloop import Killed, Process, SimLoop
from atoll_runtime.syncer.journal import Journal, Resumed
from atoll_runtime.syncer.state import Version

CODEC, UID, LINEAGE, SEED = "bf16", "uid", "lineage", 20260
FOLDER, CHANCE = Path("layout-1/journal"), random.Random(SEED)
LAYOUT = build_layout(
    [TensorInfo(name, (size,), False, False) for name, size in (("a", 5), ("b", 4), ("c", 3))], 3
)
SCRIPT = "mmrmcmsccmmrmsmcmsmmrcmsm"
"""Steps after the first one: (m)erge, (r)emember, advance the (c)lock, or (s)top and start again, which remembers."""


@dataclass(frozen=True)
class Step:
    """The only correct state after a step. A merge that is lost or applied twice would give another state."""

    number: int
    kind: str
    merged: int
    fragments: tuple[Version, ...]

    @property
    def machine(self) -> dict[str, Any]:
        return {"versions": [each.version for each in self.fragments], "machine": {"clock": self.number}}


def script() -> list[Step]:
    """All steps of the script. Each merge depends on all earlier merges of its fragment."""
    numbers, turn = np.random.default_rng(SEED), 0
    fragments = [
        Version.make(0, *numbers.random((2, each.size), np.float32), CODEC) for each in LAYOUT.fragments
    ]
    steps = [Step(0, "begin", -1, tuple(fragments))]
    for number, kind in enumerate(SCRIPT, 1):
        if kind == "m":
            old = fragments[turn % 3]
            momentum = old.momentum * np.float32(0.9) + np.float32(number)
            fragments[turn % 3] = Version.make(
                number, old.theta - np.float32(0.7) * momentum, momentum, CODEC
            )
        steps.append(Step(number, kind, turn % 3, tuple(fragments)))
        turn += kind == "m"
    return steps


STEPS = script()


def mounted(disk: SimDisk, point: int = -1) -> tuple[Mount, itertools.count[int]]:
    """The disk for a process that is killed at its change number `point`, and a counter of its changes."""
    process, changes = Process(SimLoop(lambda _: 0.0)), itertools.count()

    def moment(process: Process) -> None:
        if next(changes) == point:
            process.kill()

    return Mount(disk, process, moment), changes


def copied(disk: SimDisk, after_power_loss: bool = False) -> SimDisk:
    """A copy that shares the random generator: with the same content, or with what was synced and, at random, some of
    what was not."""
    disk.holder = None
    other = copy.deepcopy(disk, {id(CHANCE): CHANCE})
    if after_power_loss:
        other.lose_power()
    return other


def resume(mount: Mount) -> tuple[Journal, Resumed] | None:
    return Journal.resume(FOLDER, UID, LAYOUT, CODEC, disk=mount)


def play(mount: Mount) -> Iterator[int]:
    """Plays the script from the journal's step to the end. Yields each step when it is durable and learners see it."""
    found = resume(mount)
    if found is None:
        journal, at = Journal(FOLDER, UID, LAYOUT, LINEAGE, disk=mount), 0
        journal.begin(STEPS[0].fragments, STEPS[0].machine)
    else:
        journal, at = found[0], found[1].machine["machine"]["clock"]
        journal.remember(STEPS[at].machine)
    yield at
    for step in STEPS[at + 1 :]:
        if step.kind == "m":
            journal.merge(step.merged, step.fragments[step.merged], step.machine)
        elif step.kind == "c":
            journal.advance(step.number)
        else:
            if step.kind == "s":
                journal.close()
                again = resume(mount)
                assert again is not None
                journal, _ = again
            journal.remember(step.machine)
        yield step.number
    journal.close()


def live(disk: SimDisk, point: int) -> tuple[SimDisk, int, int]:
    """Plays the script from what is on the disk. The process is killed at its change number `point`. Returns the disk
    that is left, the last step that learners have seen, or -1, and the number of changes."""
    disk, shown = copied(disk), -1
    mount, changes = mounted(disk, point)
    with contextlib.suppress(Killed):
        for step in play(mount):
            shown = step
    return disk, shown, next(changes)


def same(held: Resumed, step: Step) -> None:
    """Asserts that a journal and a step are equal bit for bit."""
    assert held.lineage == LINEAGE and held.machine == step.machine
    for ours, right in zip(held.fragments, step.fragments, strict=True):
        assert (ours.version, ours.theta.tobytes(), ours.momentum.tobytes()) == (
            right.version,
            right.theta.tobytes(),
            right.momentum.tobytes(),
        )


def recovers(disk: SimDisk, seen: int, aside: dict[Path, bytes]) -> None:
    """Asserts that nothing up to the step `seen` is lost, no merge is applied twice, and the rest can be played."""
    mount, at = mounted(disk)[0], -1
    found = resume(mount)
    if found is not None:
        journal, held = found
        journal.close()
        at = held.machine["machine"]["clock"]
        same(held, STEPS[at])
    assert at >= seen, f"learners have seen step {seen}, {at} is left"
    list(play(mount))
    found = resume(mount)
    assert found is not None
    same(found[1], STEPS[-1])
    assert {path: data for path, data in disk.snapshot().items() if FOLDER not in path.parents} == aside


def test_a_syncer_killed_at_any_write_point_loses_no_merge_that_was_seen_and_applies_none_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    first = SimDisk(CHANCE, 1 << 40)
    old = Journal(FOLDER, "another", LAYOUT, "another", disk=mounted(first)[0])
    old.begin(STEPS[0].fragments, STEPS[0].machine)
    aside = {
        FOLDER.with_name("journal-of-another") / path.name: data for path, data in first.snapshot().items()
    }
    _, shown, changes = live(first, -1)
    assert shown == STEPS[-1].number and changes > 80
    done = set[str]()

    def check(left: SimDisk, seen: int, power_losses: int) -> None:
        for each in (copied(left), *(copied(left, after_power_loss=True) for _ in range(power_losses))):
            state = repr((each.snapshot(), seen))
            if state not in done:  # many kills leave the same state
                done.add(state)
                recovers(each, seen, aside)

    for point in range(changes):
        left, shown, _ = live(first, point)
        assert shown < STEPS[-1].number, "it was not killed"
        check(left, shown, 4)
        # A second life must make what the first one left without a sync durable before it shows that.
        for second in itertools.count():
            again, later, _ = live(left, second)
            check(again, max(shown, later), 1)
            if later >= 0:
                break
