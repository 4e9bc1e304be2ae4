"""A unit whose node was lost may still run there: what the syncer counts of it, in simulated time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from lone_shard import LONE
from sim_scenario import Island, Scenario, Weather
from sim_values import Value
from sim_world import World

RULES = replace(
    LONE, fragments=4, interval=8, overlap=2, grace_fraction=0.8, target_steps=120, cut_interval=1000
)
LOSSES = st.lists(st.tuples(st.floats(1.0, 30.0), st.floats(0.0, 20.0)), min_size=1, max_size=3)


def lineage(value: Value) -> list[Value]:
    """A fragment's merges, the oldest first."""
    found: list[Value] = []
    here: Value | None = value
    while here is not None and here.members:
        found.append(here)
        here = here.parent
    return found[::-1]


@settings(max_examples=40)
@given(seed=st.integers(0, 999), losses=LOSSES)
def test_never_are_two_incarnations_of_a_unit_counted(seed, losses) -> None:
    """Its node is cut off, its successor is made meanwhile, and the zombie comes back and races it."""
    islands = (Island("u0", 1, 1.0, 10), Island("u1", 1, 1.0, 10))
    world = World(Scenario(seed, RULES, ((10,) * 4,), islands, Weather(0.2), ()))
    for trains, silent in losses:
        world.run_for(trains)
        world.cut_off(world.units[1], silent)
        world.units[1].start()  # nothing ends the old one: no kubelet is there to do it
    world.run()
    process = world.shards[0].process
    assert process is not None
    counted = 0
    for value in process.memory:
        newest = 0
        for merge in lineage(value):
            mine = [member.who[1] for member in merge.members if member.who[0] == "u1"]
            assert len(mine) <= 1
            assert all(incarnation >= newest for incarnation in mine)
            newest = max([newest, *mine])
            counted += len(mine)
        assert newest in (0, len(losses) + 1)
    assert counted > 0
    assert (
        sum(unit.alive for unit in world.units[1].processes[:-1]) == 0
    )  # each zombie heard that it is fenced
