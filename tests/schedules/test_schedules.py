"""Thousands of random schedules of the whole protocol, the same on every machine; SEED and SCHEDULES choose others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import soak
from lone_shard import LONE
from sim_disk import Mount
from sim_scenario import Island, Scenario, Weather
from sim_shard import ShardProcess
from sim_world import World
from soak import batch

from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.protocol.rules import Rules

SEED = int(os.environ.get("SEED") or 20261121)
COUNT = int(os.environ.get("SCHEDULES") or 3_000)
PART = 50
"""Schedules of one test: the workers share the tests between them."""


@pytest.mark.timeout(900)  # 5 s alone
@pytest.mark.parametrize("first", range(SEED, SEED + COUNT, PART))
def test_every_schedule_keeps_every_promise_and_reaches_its_end(first: int) -> None:
    failures = [outcome for outcome in batch(first, min(PART, SEED + COUNT - first)) if outcome.failure]
    assert not failures, "\n".join(map(str, failures[:10]))


def four_units(rules: Rules, steps: tuple[float, ...], weather: Weather, budget: int = 1 << 20) -> World:
    """A world of units of one host, in which every shard has four fragments of ten elements."""
    units = tuple(Island(f"u{number}", 1, seconds, 10) for number, seconds in enumerate(steps))
    return World(Scenario(0, rules, ((10,) * 4,) * rules.shards, units, weather, (), budget=budget))


FOUR = replace(LONE, fragments=4, target_steps=40)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_a_run_goes_on_whichever_shard_dies_at_whichever_change_of_its_volume(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that ships, with its journal, cuts and recovery. `power`: what was not synced is lost too."""
    change, left, died = Mount._change, 0, 0

    def count(mount: Mount) -> None:
        nonlocal left
        left -= 1
        process = mount._process
        if left == 0 and isinstance(process, ShardProcess) and process.alive:
            process.world.crash(process.slot, fault)
        change(mount)

    monkeypatch.setattr(Mount, "_change", count)
    rules = replace(FOUR, interval=4, overlap=2, quorum=2, cut_interval=3, target_steps=6, shards=2)
    while left <= 0:  # in the last world all changes were made
        died += 1
        left = died
        four_units(rules, (1.0, 1.1), Weather(0.05)).run()
    assert died > 100


def test_memory_for_fewer_rounds_than_may_be_in_flight_holds_no_run_up() -> None:
    """After a restart all lost rounds are opened again. None may take a part of the memory that another needs."""
    rules = replace(FOUR, interval=4, overlap=2, quorum=4, grace_fraction=0.5, cut_interval=20)
    world = four_units(rules, (1.0, 1.01, 1.02, 1.03), Weather(0.05), budget=4 * 10 * 4)
    world.run_for(12.0)
    world.crash(world.shards[0])
    world.run()


def test_a_unit_that_reports_to_another_shard_than_shard_0_sets_no_pace_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = SyncerClient.report

    def everywhere(client: SyncerClient, *figures: Any) -> None:
        report(client, *figures)
        *done, loss, _ = figures
        if client._unit.unit == "u0":
            with client._signals.changing():
                client._sessions[1].report(*done, loss, 86400.0)

    rules = replace(FOUR, interval=8, quorum=2, grace_fraction=0.8, shards=2)
    world = four_units(rules, (1.0,) * 4, Weather(0.01))
    monkeypatch.setattr(SyncerClient, "report", everywhere)
    world.run_for(20.0)
    process = world.shards[1].process
    assert process is not None and 0.9 < process.machine.rounds.slowest < 2.0


def test_a_seed_is_the_same_schedules_in_every_process() -> None:
    """Though hashes of strings differ, and with them the order of sets."""
    told = set()
    for hashes in ("1", "2"):
        command = [sys.executable, str(soak.__file__), "--seed", str(SEED), "--count", "8"]
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        told.add(done.stdout.rpartition(",")[0])  # without the seconds
    assert len(told) == 1, told
