"""A unit that hangs with its sessions open: shard 0 alone hears that it is silent, and no shard waits for it."""

from __future__ import annotations

from dataclasses import replace

from lone_shard import LONE
from sim_scenario import Island, Scenario, Weather
from sim_world import World

RULES = replace(
    LONE,
    fragments=2,
    interval=4,
    overlap=2,
    grace_fraction=0.8,
    target_steps=10**4,
    cut_interval=10**6,
    shards=2,
)
HANGS = 100.0


def live(world: World) -> list[list[str]]:
    """Whom each shard waits for."""
    processes = [slot.process for slot in world.shards]
    assert all(process is not None for process in processes)
    return [[unit.name for unit in process.machine.live(world.now)] for process in processes if process]


def last_members(world: World) -> list[set[str]]:
    """Of each shard: who is in the newest merge of both fragments."""
    return [
        set.intersection(*({member.who[0] for member in value.members} for value in slot.process.memory))
        for slot in world.shards
        if slot.process
    ]


def test_every_shard_stops_to_wait_for_a_unit_that_hangs_and_merges_its_work_when_it_is_back() -> None:
    islands = (Island("u0", 1, 1.0, 10), Island("u1", 2, 1.0, 10))
    world = World(Scenario(0, RULES, ((10,) * 2,) * 2, islands, Weather(0.01), ()))
    world.run_for(60.0)
    assert live(world) == [["u0", "u1"]] * 2
    assert last_members(world) == [{"u0", "u1"}] * 2
    world.units[1].hung_until = world.now + HANGS
    world.run_for(RULES.silence + 5.0)
    assert live(world) == [["u0"]] * 2
    world.run_for(20.0)
    assert last_members(world) == [{"u0"}] * 2
    world.run_for(HANGS - RULES.silence - 5.0)
    assert live(world) == [["u0", "u1"]] * 2
    assert last_members(world) == [{"u0", "u1"}] * 2
