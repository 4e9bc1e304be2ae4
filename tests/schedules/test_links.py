"""No unit starves on a slow link, and none slows the others: unequal links, in simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from lone_shard import LONE
from sim_scenario import Island, Scenario, Spell, Weather
from sim_world import World

from atoll_runtime.protocol.communication import Communication
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.rules import STALE_INTERVALS

Downs = tuple[tuple[float, float], ...]

P = H = 12
STEP = 5.0
SHORT = 0.5
"""A step where round trips are long: a session does not take one of minutes."""
STEPS = 600
"""Global steps, each of which opens a round: 50 of each fragment."""
GBIT = 16.0
"""Of a fragment: 12 · 10⁹ parameters in bfloat16, in 12 fragments."""
FLOAT32 = 4
"""Bytes."""
MANY = 10**6
"""Rounds: more than are held at a time."""
CALM = Weather(0.01)
NEED = GBIT / STEP
"""Gbit/s that membership in every round takes."""
RULES = replace(
    LONE, fragments=P, interval=H, overlap=2, grace_fraction=0.8, target_steps=STEPS, cut_interval=10**6
)


@dataclass(frozen=True)
class Seen:
    """What became of a run, by unit."""

    seconds: float
    members: dict[str, float]
    """Mean share of the rounds of a fragment of which each unit is a member."""
    accounts: dict[str, Account]
    rounds: dict[int, set[str]]
    """The members of each, by step."""
    used: dict[str, Communication]

    def share(self, name: str, since: float, until: float) -> float:
        """Of the rounds of these seconds, of which a unit is a member."""
        found = [name in members for step, members in self.rounds.items() if since < step * STEP <= until]
        return sum(found) / len(found)


def run(
    *islands: Island,
    interval: int = H,
    fragments: int = P,
    adaptive: bool = False,
    down: Downs = (),
    joins: float = 0.0,
    lost: float = 0.0,
    steps: int = STEPS,
    weather: Weather = CALM,
    overlap: int = 2,
    quorum: int = 1,
    slow_factor: float = math.inf,
    held: int = MANY,
    shards: int = 1,
) -> Seen:
    """A run's rounds after its first quarter, which has the units' first contributions.

    Args:
        down: from when on, and for how many seconds, the first unit is not reached.
        joins: when the first unit joins, if that is later than the start.
        lost: when the shard loses its volume. All units then fetch every fragment at once.
        held: rounds with contributions that fit into the memory of a shard.
        shards: each has as much of every fragment. A unit's host has one link to all of them.
    """
    rules = replace(
        RULES,
        interval=interval,
        fragments=fragments,
        target_steps=steps,
        overlap=overlap,
        quorum=quorum,
        slow_factor=slow_factor,
        shards=shards,
    )
    world = World(
        Scenario(
            0,
            rules,
            ((10,) * fragments,) * shards,
            islands,
            weather,
            (),
            adaptive=adaptive,
            budget=held * len(islands) * 10 * FLOAT32,
            shared=True,
        )
    )
    for since, seconds in down:
        world.at_time(since, None, world.cut_off, world.units[0], seconds)
    if lost:
        world.at_time(lost, None, world.crash, world.shards[0], "lose volume")
    if joins:
        world.units[0].stopped = True
        world.at_time(joins, None, setattr, world.units[0], "stopped", False)
        world.at_time(joins, None, world.start_unit, world.units[0])

    def finishing() -> bool:
        process = world.shards[0].process
        return process is not None and process.driver is not None and process.machine.finishing

    world.run_while(lambda: world.now < 2 * steps * STEP and not finishing())
    assert finishing(), world.checks.why()
    process = world.shards[0].process
    assert process is not None
    shares: dict[str, list[float]] = {island.name: [] for island in islands}
    taken: dict[int, set[str]] = {}
    for newest in process.memory:
        merges, value = [], newest
        while value is not None and value.version > steps / 4:
            merges.append(value.version)
            taken[value.version] = {member.who[0] for member in value.members}
            value = value.parent
        for name, each in shares.items():
            each.append(sum(name in taken[version] for version in merges) / len(merges))
    members = {name: sum(each) / fragments for name, each in shares.items()}
    assert all(min(each) > 0.5 * members[name] for name, each in shares.items()), (
        "turns are fair over fragments"
    )
    accounts = {name: unit.account for name, unit in process.machine.units.items()}
    used = {
        unit.name: unit.processes[-1].hosts[0].client.communication for unit in world.units if unit.processes
    }
    return Seen(world.now, members, accounts, taken, used)


def merged(account: Account) -> float:
    return account.merged / account.trained


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shards", [1, 3])
def test_each_unit_is_a_member_as_often_as_its_link_allows_and_the_clock_keeps_its_pace(shards: int) -> None:
    links = (0.8, 2.0, 3.0, 4.0, 5.0)
    seen = run(*(Island(f"u{link}", 1, STEP, 10, GBIT / link / shards) for link in links), shards=shards)
    assert seen.seconds < 1.02 * STEPS * STEP
    fastest = merged(seen.accounts["u5.0"])
    for link in links:
        share = min(1.0, link / NEED)
        assert seen.members[f"u{link}"] >= 0.9 * share
        assert merged(seen.accounts[f"u{link}"]) >= 0.9 * share * fastest


@pytest.mark.timeout(600)
def test_slow_links_do_not_slow_the_others_where_few_rounds_fit_into_memory() -> None:
    """Three rounds: the slow links are members of at least half as many rounds as they carry."""
    links = (2.0, 2.5, 3.0, 4.0, 5.0)
    seen = run(*(Island(f"u{link}", 1, STEP, 10, GBIT / link) for link in links), steps=SHORT_RUN, held=3)
    assert seen.seconds < 1.02 * SHORT_RUN * STEP
    for link in links:
        assert seen.members[f"u{link}"] >= (0.98 if link > NEED else 0.5 * link / NEED)
        assert merged(seen.accounts[f"u{link}"]) >= 0.8


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("period", "first", "held", "share"),
    [
        pytest.param(2 * STEP, 1.0, MANY, 0.9, id="every second round"),
        pytest.param(7.0, 3.0, MANY, 0.9, id="now these rounds, now others"),
        pytest.param(H * STEP, 3.0, MANY, 0.9, id="rounds of the same fragments each time"),
        pytest.param(H * STEP, 33.0, MANY, 0.9, id="rounds of other fragments each time"),
        pytest.param(100.0, 3.0, MANY, 0.85, id="nearly an interval"),
        pytest.param(100.0, 3.0, 5, 0.7, id="nearly an interval, with memory for five rounds"),
        pytest.param(300.0, 3.0, MANY, 0.55, id="longer than an interval"),
    ],
)
def test_a_unit_whose_link_is_busy_out_of_phase_with_the_others_is_in_nearly_every_round(
    period: float, first: float, held: int, share: float
) -> None:
    """No fragment starves, which `run` asserts, and as much is merged as of the others."""
    busy = Island("busy", 1, STEP, 10, 0.4 * STEP, busy=(period, first, 0.43 * period))
    seen = run(busy, *(Island(f"u{n}", 1, STEP, 10, 1.0) for n in (1, 2)), held=held)
    assert seen.members["busy"] >= share
    assert merged(seen.accounts["busy"]) >= 0.99 * merged(seen.accounts["u1"])
    assert seen.seconds < 1.02 * STEPS * STEP


@pytest.mark.parametrize(
    ("interval", "trip", "share"),
    [(H, 4.0, 0.9), (H, 8.0, 0.4), (24, 10.0, 0.9)],
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fragments", "interval", "intervals", "steps"),
    [pytest.param(P, H, 6.0, STEPS, id="0.8 intervals"), pytest.param(2, 8, 24.0, 1200, id="3.2 intervals")],
)
def test_a_unit_does_not_starve_whose_transfers_take_longer_than_an_interval(
    fragments: int, interval: int, intervals: float, steps: int
) -> None:
    """A newer version has been merged whenever it has one, and a contribution in int4 takes so many intervals.
    `intervals`: the same in the widest codec."""
    slow, quick = Island("slow", 1, STEP, 10, intervals * interval * STEP), Island("quick", 1, STEP, 10, 1.0)
    seen = run(slow, quick, interval=interval, fragments=fragments, adaptive=True, steps=steps)
    assert seen.seconds < 1.02 * steps * STEP
    assert seen.members["quick"] >= 0.98
    assert seen.members["slow"] >= 0.04
    assert merged(seen.accounts["slow"]) >= 0.75


@pytest.mark.parametrize(("link", "uneven"), [(0.7, 1.5), (1.3, 1.0)])
def test_hosts_of_a_unit_get_the_same_versions_though_newer_ones_are_merged_while_each_fetches(
    link: float, uneven: float
) -> None:
    """`link`: intervals that a transfer takes. The shard sends each host the newest version that it has."""
    interval, fragments, lost, steps = 6, 4, 700.0, 400
    slow = Island("slow", 2, STEP, 10, link * interval * STEP, uneven=uneven)
    quick = Island("quick", 1, STEP, 10, 1.0)
    seen = run(slow, quick, interval=interval, fragments=fragments, lost=lost, steps=steps)
    turn = fragments * link * uneven
    assert seen.share("slow", lost + 300.0, steps * STEP) >= 0.9 / turn
    assert merged(seen.accounts["slow"]) >= 0.9 * merged(seen.accounts["quick"])


def test_a_unit_joins_though_its_first_fetch_takes_longer_than_an_anchor_may_be_old_on_a_fast_link() -> None:
    interval, steps = 8, 800
    fetch = 1.25 * STALE_INTERVALS * interval * STEP
    slow, quick = Island("slow", 1, STEP, 10, fetch), Island("quick", 1, STEP, 10, 1.0)
    seen = run(slow, quick, interval=interval, fragments=1, joins=fetch, steps=steps)
    assert seen.members["slow"] >= 0.04
    assert merged(seen.accounts["slow"]) >= 0.5


def test_a_unit_that_fetches_too_slowly_for_a_fast_link_but_sends_fast_is_a_member_all_the_same() -> None:
    """Its first contributions are sent before it has fetched anything, and no other can be until an anchor counts."""
    down = Spell(0.0, math.inf, 0.05, "down")
    slow = Island("slow", 1, STEP, 10, 0.0625 * STALE_INTERVALS * 8 * STEP, spells=(down,))
    seen = run(slow, Island("quick", 1, STEP, 10, 1.0), interval=8, fragments=1, steps=800)
    assert seen.members["slow"] >= 0.04
    assert merged(seen.accounts["slow"]) >= 0.5


@pytest.mark.parametrize("link", [5.0, 1.2])
def test_a_unit_that_always_answers_last_is_a_member_though_a_round_has_no_time_to_spare(link: float) -> None:
    """A round must end within a step, and has its quorum without the unit. Then the unit is in every second one, or in
    as many as its link carries."""
    last, others = (
        Island("z", 1, STEP, 10, GBIT / link),
        [Island(f"u{n}", 1, STEP, 10, 1.0) for n in (1, 2, 3)],
    )
    seen = run(last, *others, overlap=1, quorum=3, steps=SHORT_RUN)
    assert seen.members["z"] >= 0.9 / max(2, math.ceil(NEED / link))
    assert merged(seen.accounts["z"]) >= 0.85
    assert seen.seconds < 1.02 * SHORT_RUN * STEP


SHORT_RUN = 300
"""Global steps."""
END = 1000.0
"""Seconds at which a link is as usual again."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("spells", "down"),
    [
        pytest.param((), ((END - 60, 60.0),), id="down for 60 s"),
        pytest.param((), ((END - 600, 600.0),), id="down for 10 minutes"),
        pytest.param((), tuple((END - n, 5.0) for n in range(125, 0, -10)), id="flapping every 5 s"),
        pytest.param((Spell(END - 60, END, 0.0, "up"),), (), id="nothing goes up for 60 s"),
        pytest.param((Spell(END - 60, END, 0.0, "down"),), (), id="nothing comes down for 60 s"),
        pytest.param((Spell(END - 60, END, 0.1),), (), id="a tenth for a minute"),
        pytest.param((Spell(END - 600, END, delay=0.15),), (), id="300 ms more for 10 minutes"),
    ],
)
def test_a_link_that_fails_stops_nobody_and_its_unit_has_caught_up_an_interval_after_its_return(
    spells: tuple[Spell, ...], down: Downs
) -> None:
    failing = Island("failing", 1, STEP, 10, 0.4 * STEP, spells=spells)
    other = Island("other", 1, STEP, 10, 0.4 * STEP)
    seen = run(failing, other, adaptive=True, down=down, steps=SHORT_RUN)
    assert seen.seconds < 1.02 * SHORT_RUN * STEP
    assert seen.members["other"] >= 0.98
    interval = H * STEP
    assert seen.share("failing", END + interval, END + 6 * interval) >= 0.95
    assert seen.used["failing"].codec == "float32", "the link is used again as before"


@pytest.mark.timeout(600)
def test_where_2_percent_of_connections_are_reset_units_are_in_nearly_every_round() -> None:
    """At each message and each transfer, all the time."""
    islands = [Island(f"u{n}", 1, STEP, 10, 0.4 * STEP) for n in (1, 2)]
    seen = run(*islands, adaptive=True, steps=SHORT_RUN, weather=Weather(0.01, loss=0.02, breaks=0.02))
    assert seen.seconds < 1.02 * SHORT_RUN * STEP
    for island in islands:
        assert seen.members[island.name] >= 0.9
        assert merged(seen.accounts[island.name]) >= 0.85


@pytest.mark.timeout(600)
def test_a_unit_whose_steps_are_too_long_to_set_the_clock_loses_none_of_its_work() -> None:
    slow = Island("slow", 1, 5.1 * STEP, 10)
    others = [Island(f"u{n}", 1, STEP + 0.01 * n, 10) for n in (1, 2, 3)]
    seen = run(*others, slow, slow_factor=4.0, steps=SHORT_RUN)
    assert seen.seconds < 1.02 * SHORT_RUN * STEP
    assert seen.members["slow"] >= 0.95
    assert merged(seen.accounts["slow"]) >= 0.9


def test_a_unit_whose_step_takes_more_intervals_than_an_anchor_may_be_old_is_a_member_all_the_same() -> None:
    interval = 4
    slow = Island("slow", 1, (STALE_INTERVALS + 2) * interval * STEP, 10)
    others = [Island(f"u{n}", 1, STEP + 0.01 * n, 10) for n in (1, 2, 3)]
    seen = run(*others, slow, slow_factor=4.0, interval=interval, fragments=2, steps=1200)
    assert seen.members["slow"] >= 0.9 / (STALE_INTERVALS + 2) / 2
    assert merged(seen.accounts["slow"]) >= 0.8
