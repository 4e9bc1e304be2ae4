"""No unit starves on a slow link, and none slows the others: unequal links, in simulated time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from lone_shard import LONE
from sim_scenario import Island, Scenario, Weather
from sim_world import World

from atoll_runtime.protocol.ledger import Account

P = H = 12
STEP = 5.0
SHORT = 0.5
"""A step where round trips are long: a session does not take one of minutes."""
STEPS = 600
"""Global steps, each of which opens a round: 50 of each fragment."""
GBIT = 16.0
"""Of a fragment: 12 · 10⁹ parameters in bfloat16, in 12 fragments."""
NEED = GBIT / STEP
"""Gbit/s that membership in every round takes."""
RULES = replace(
    LONE, fragments=P, interval=H, overlap=2, grace_fraction=0.8, target_steps=STEPS, cut_interval=10**6
)


@dataclass(frozen=True)
class Seen:
    """What became of a run, by unit."""

    seconds: float
    members: Counter[str]
    """Share of rounds, by unit; of each fragment, the least."""
    accounts: dict[str, Account]


def run(*islands: Island, interval: int = H) -> Seen:
    """A run's rounds after its first quarter, which has the units' first contributions."""
    rules = replace(RULES, interval=interval)
    world = World(Scenario(0, rules, ((10,) * P,), islands, Weather(0.01), ()))
    machine = None
    while machine is None or not machine.finishing:
        world.step()
        process = world.shards[0].process
        machine = process.machine if process is not None and process.driver is not None else None
        assert world.now < 2 * STEPS * STEP, world.checks.why()
    members: Counter[str] = Counter()
    assert process is not None
    shares: dict[str, list[float]] = {island.name: [] for island in islands}
    for value in process.memory:
        rounds, members = 0, Counter()
        while value is not None and value.version > STEPS / 4:
            rounds += 1
            members.update(member.who[0] for member in value.members)
            value = value.parent
        for name in shares:
            shares[name].append(members[name] / rounds)
    least = Counter({name: min(each) for name, each in shares.items()})
    mean = Counter({name: sum(each) / P for name, each in shares.items()})
    assert all(least[name] > 0.5 * mean[name] for name in shares), "turns are fair over fragments"
    accounts = {name: unit.account for name, unit in machine.units.items()}
    return Seen(world.now, mean, accounts)


def merged(account: Account) -> float:
    return account.merged / account.trained


@pytest.mark.timeout(600)
def test_each_unit_is_a_member_as_often_as_its_link_allows_and_the_clock_keeps_its_pace() -> None:
    links = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
    seen = run(*(Island(f"u{link}", 1, STEP, 10, GBIT / link) for link in links))
    assert seen.seconds < 1.02 * STEPS * STEP
    fastest = merged(seen.accounts["u5.0"])
    for link in links:
        share = min(1.0, link / NEED)
        assert seen.members[f"u{link}"] >= 0.9 * share
        assert merged(seen.accounts[f"u{link}"]) >= 0.9 * share * fastest


def test_a_link_that_carries_one_round_in_four_is_given_every_fourth() -> None:
    seen = run(Island("slow", 1, STEP, 10, 4 * STEP), *(Island(f"u{n}", 1, STEP, 10, 1.0) for n in (1, 2)))
    assert seen.seconds < 1.02 * STEPS * STEP
    assert seen.members["slow"] >= 0.9 / 4
    assert seen.members["u1"] >= 0.98
    assert merged(seen.accounts["slow"]) >= 0.9 / 4


def test_a_unit_whose_link_is_busy_out_of_phase_with_the_others_is_in_nearly_every_round() -> None:
    busy = Island("busy", 1, STEP, 10, 0.4 * STEP, busy=(2 * STEP, 1.0, 0.86 * STEP))
    seen = run(busy, *(Island(f"u{n}", 1, STEP, 10, 1.0) for n in (1, 2)))
    assert seen.members["busy"] >= 0.9
    assert seen.seconds < 1.02 * STEPS * STEP


@pytest.mark.parametrize(
    ("interval", "trip", "share"),
    [(H, 0.1, 0.9), (H, 1.0, 0.9), (H, 4.0, 0.9), (H, 8.0, 0.4), (24, 10.0, 0.9)],
)
def test_a_unit_is_in_nearly_every_round_whose_interval_has_two_round_trips(
    interval: int, trip: float, share: float
) -> None:
    """`trip` is in steps. Where an interval has only one, the unit is in every second round."""
    far = Island("far", 1, SHORT, 10, 0.02 * SHORT, distance=trip * SHORT / 2)
    near = [Island(f"u{n}", 1, SHORT, 10, 0.02 * SHORT) for n in (1, 2)]
    seen = run(far, *near, interval=interval)
    assert seen.members["far"] >= share
    assert merged(seen.accounts["far"]) >= 0.85
    assert seen.members["u1"] >= 0.98
    assert seen.seconds < 1.02 * STEPS * SHORT


def test_where_the_quorum_needs_a_slow_link_the_clock_follows_it() -> None:
    seen = run(*(Island(f"u{n}", 1, STEP, 10, 1.5 * STEP) for n in (1,)))
    assert seen.members["u1"] == 1.0
    assert seen.seconds < 1.7 * STEPS * STEP
