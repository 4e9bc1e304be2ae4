"""Which tokens and steps a contribution may claim, and when refusals make a unit suspect."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_shard import LONE, Story, joined, offered
from msgspec import convert

from atoll_runtime.protocol import claims, restoring
from atoll_runtime.protocol.effects import Merge, Note
from atoll_runtime.protocol.events import Received
from atoll_runtime.protocol.messages import Orders, Part
from atoll_runtime.protocol.norms import ATTEMPTS, WARM
from atoll_runtime.protocol.rules import FAST_FACTOR
from atoll_runtime.protocol.suspicion import REFUSALS, WINDOW, suspicion, with_outcome
from atoll_runtime.protocol.units import Unit
from atoll_runtime.syncer.status import unit_report

KNOWN = {"run-v6e": (512, 1024), "extra": (64,), "run-a-b": (8,)}


@pytest.mark.parametrize(
    ("unit", "tokens"),
    [("run-v6e-0", (512, 1024)), ("run-v6e-12", (512, 1024)), ("extra", (64,)), ("run-a-b-3", (8,))]
    + [(unit, ()) for unit in ("run-v6e-x", "run-v5e-0", "other", "")],
)
def test_a_units_batch_is_known_by_its_name_or_by_its_pools(unit: str, tokens: tuple[int, ...]) -> None:
    assert claims.step_tokens(KNOWN, unit) == tokens


@pytest.mark.parametrize(
    ("steps", "tokens", "elapsed", "fastest", "reason"),
    [
        (24, 24 * 512, 24.0, 1.0, ""),
        (24, 24 * 1024, 24.0, 1.0, ""),
        (24, 10**15, 24.0, 1.0, "tokens: 1000000000000000 in 24 steps"),
        (
            24,
            24 * 1024 + 1,
            24.0,
            1.0,
            "tokens: 24577 in 24 steps, in which a unit of its batch trains on 24576",
        ),
        (24, 24 * 256, 24.0, 1.0, ""),
        (10**9, 10**9 * 512, 24.0, 1.0, "steps: 1000000000 in 24 s"),
        (112, 112 * 512, 24.0, 1.0, ""),
        (113, 113 * 512, 24.0, 1.0, "time for 112"),
        (16, 16 * 512, 0.0, 1.0, ""),
        (10**9, 10**9 * 512, math.inf, 1.0, ""),  # their weight is bounded by the others' steps
        (10**9, 10**9 * 512, 24.0, 0.0, ""),
        (10**9, 10**9 * 512, math.inf, 0.0, ""),
    ],
)
def test_claims_are_held_against_batch_and_time(
    steps: int, tokens: int, elapsed: float, fastest: float, reason: str
) -> None:
    found = claims.impossible(steps, tokens, KNOWN, "run-v6e-0", elapsed=elapsed, fastest=fastest)
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (2 * 1024, ""),
        (2 * 100, ""),
        (2 * 1024 + 1, "tokens: 2049 in 2 steps, in which a unit of its batch trains on 2048"),
    ],
)
def test_a_unit_whose_batch_is_not_known_may_have_the_largest_of_the_run(tokens: int, reason: str) -> None:
    assert claims.impossible(2, tokens, KNOWN, "made-by-hand", elapsed=1.0, fastest=1.0) == reason
    assert not claims.impossible(2, tokens, {}, "made-by-hand", elapsed=1.0, fastest=1.0), "of none is known"


@given(
    st.lists(st.floats(0.001, 100.0), min_size=1, max_size=200),
    st.integers(1, 10**6),
    st.floats(0.25, 1.0),
    st.floats(0.0, 1000.0),
)
def test_no_honest_unit_is_refused_whatever_its_steps_take(
    seconds: list[float], batch: int, seen: float, late: float
) -> None:
    """The unit's anchor was merged before its first step. The shortest step that it has reported is up to four times as
    long as its shortest one."""
    steps, fastest = len(seconds), min(seconds) / seen
    elapsed = math.fsum(seconds) + late
    known = {"u": (batch,)}
    assert not claims.impossible(steps, steps * batch, known, "u", elapsed=elapsed, fastest=fastest)


class Shard(Story):
    """A shard with the guard on. Units step once a second."""

    def __init__(self, *units: str, **changes: int) -> None:
        batches = {name: (10,) for name in units}
        rules = replace(LONE, guard=True, step_tokens=batches, grace_fraction=0.8, **changes)
        super().__init__(rules, "".join(units))
        self.run(3)

    def answer(self, part: Part, square: float = 1.0) -> None:
        self.tell(offered(part))
        self.tell(Received(part, square))

    def until_open(self) -> None:
        while not self.machine.rounds.in_flight:
            self.run(1)

    def restart(self, away: int) -> None:
        """The process ends, and the next one begins after `away` seconds. Nobody is connected."""
        record = json.loads(json.dumps(self.machine.record()))
        self.now += away
        self.machine = restoring.restore(self.machine.rules, (10,) * LONE.fragments, record, self.now)

    @property
    def members(self) -> list[tuple[str, ...]]:
        return [tuple(member.unit for member in merge.members) for merge in self.asked(Merge)]

    @property
    def notes(self) -> list[Mapping[str, object]]:
        return [note.entry for note in self.asked(Note)]

    def refusals(self) -> list[str]:
        return [str(note["why"]) for note in self.notes if note["event"] == "refused"]


def test_steps_that_time_does_not_allow_are_refused() -> None:
    shard = Shard("a")
    shard.answer(shard.part("a"))
    assert shard.members == [("a",)]
    shard.run(2)
    shard.tell(offered(shard.part("a", steps=10**6, tokens=10**7, trained=10**7 + 1000)))
    (why,) = shard.refusals()
    assert "steps: 1000000 in 3 s" in why


@pytest.mark.parametrize(
    ("steps", "present", "fastest", "reason"),
    [
        (16, 0.0, 0.0, ""),
        (17, 1000.0, 0.0, "with time for 16384"),
        (2416, 0.0, 1.0, ""),  # it may have begun ten minutes before
        (2417, 0.0, 1.0, "tokens: 2475008 in all, 0 s after the unit has joined"),
        (6416, 1000.0, 1.0, ""),
        (6417, 1000.0, 1.0, "time for 6569984"),
    ],
)
def test_tokens_of_an_incarnation_are_held_against_the_time_since_it_joined(
    steps: int, present: float, fastest: float, reason: str
) -> None:
    found = claims.untimely(1024 * steps, KNOWN, "run-v6e-0", present=present, fastest=fastest)
    assert reason in found and bool(reason) == bool(found)
    assert not claims.untimely(steps, {}, "run-v6e-0", present=present, fastest=fastest), "no batch is known"


def restarted(away: int) -> Shard:
    """A shard that has merged units a and b once, and was away for so many seconds."""
    shard = Shard("a", "b")
    for name in "ab":
        shard.answer(shard.part(name))
    shard.run(1)
    shard.restart(away)
    return shard


@pytest.mark.parametrize("away", [0, 1000])
def test_a_shard_that_was_restarted_refuses_the_same_steps_and_takes_those_made_while_it_was_away(
    away: int,
) -> None:
    shard = restarted(away)
    for name in "ab":
        shard.steps[name] += away
        shard.tell(joined(name))
    shard.until_open()
    lie = 10 * (away + 100)
    shard.answer(shard.part("b", steps=lie, tokens=10 * lie, trained=10 * lie + 1000))
    shard.answer(shard.part("a"))
    (why,) = shard.refusals()
    assert f"steps: {lie} in" in why and shard.members[-1] == ("a",)


def test_a_unit_that_began_while_a_shard_was_away_for_an_hour_is_believed() -> None:
    shard = restarted(3600)
    shard.tell(joined("a"), joined("b", 2))
    shard.steps.update(a=shard.steps["a"] + 3600, b=3500)
    shard.until_open()
    shard.answer(shard.part("b", incarnation=2, trained=10 * shard.steps["b"]))
    shard.answer(shard.part("a"))
    assert shard.refusals() == [] and shard.members[-1] == ("a", "b")


def test_the_first_unit_that_reports_after_a_restart_does_not_decide_how_fast_the_others_are() -> None:
    shard = restarted(600)
    shard.tell(joined("a"), joined("b"))
    shard.steps["b"] += 600
    for _ in range(3):
        shard.step("a", 100.0)
    shard.answer(shard.part("b"))
    shard.answer(shard.part("a"))
    assert shard.refusals() == [] and shard.members[-1] == ("a", "b")


def test_one_unit_does_not_raise_the_limit_of_steps_for_good_by_restarts() -> None:
    shard = Shard(*"abcd")
    for _ in range(3):
        shard.restart(10)
        shard.tell(joined("a"))
        for _ in range(3):
            shard.step("a", 1e-6)
        assert shard.machine.rounds.fastest == 1.0 / FAST_FACTOR
    for name in "bcd":
        shard.tell(joined(name))
    shard.run(3, "bcd")
    assert shard.machine.rounds.fastest == 1.0 / FAST_FACTOR, "the median of four, divided"
    shard.restart(10)
    for name in "bcd":
        shard.tell(joined(name))
    shard.run(3, "bcd")
    assert shard.machine.rounds.fastest == 1.0


def test_a_shard_that_does_not_know_the_pace_yet_refuses_no_steps_since_an_earlier_contribution() -> None:
    """Shard 0 has restarted too, and tells the shortest step before the slowest."""
    shard = Shard("b", interval=24, shard=1, shards=2)
    shard.tell(*(Orders(step=step, seconds=5.0, fastest=5.0) for step in range(1, 26)))
    shard.answer(shard.part("b"))
    assert shard.members == [("b",)]
    shard.join("a")
    shard.restart(10)
    shard.tell(joined("a"), joined("b"), *(Orders(step=step) for step in range(26, 51)))
    shard.steps["a"] = 1
    shard.answer(shard.part("a", steps=240, tokens=2400, trained=2400))
    assert shard.refusals() == [] and shard.machine.rounds.fastest == 5.0


def test_a_unit_with_a_wrong_norm_is_refused_though_after_a_restart_it_is_the_first_that_is_back() -> None:
    shard = Shard("a", "b", "c")
    for _ in range(WARM + 1):
        for name in "abc":
            shard.answer(shard.part(name))
        shard.run(1)
    merged = len(shard.members)
    shard.restart(10)
    shard.tell(joined("a"))
    for _ in range(100):
        shard.run(1, "a")
        if shard.machine.rounds.in_flight:
            shard.answer(shard.part("a"), 1e8)
    assert shard.refusals() and len(shard.members) == merged
    for name in "bc":
        shard.tell(joined(name))
    for _ in range(200):
        shard.run(1)
        for name in "abc" if shard.machine.rounds.in_flight else "":
            shard.answer(shard.part(name), 1e8 if name == "a" else 1.0)
        if len(shard.members) > merged:
            break
    assert shard.members[merged:] == [("b", "c")]


def test_a_first_contribution_that_claims_a_run_of_steps_ends_no_run_that_has_a_target_in_tokens() -> None:
    shard = Shard("a", "b", target_steps=None, target_tokens=10**6)
    many = 10**6
    shard.answer(shard.part("a", steps=many, tokens=10 * many, trained=10 * many))
    shard.answer(shard.part("b"))
    (why,) = shard.refusals()
    assert "tokens: 10000000 in all" in why and shard.members == [("b",)]
    assert shard.machine.tokens < 1000 and not shard.machine.orders.ending


def test_a_count_of_tokens_that_overflows_is_refused_and_what_is_right_counts_afterwards() -> None:
    shard = Shard("a", "b")
    shard.answer(shard.part("b"))
    shard.answer(shard.part("a", trained=10**15))
    assert len(shard.refusals()) == 1
    for _ in range(8):
        shard.run(1)
        shard.answer(shard.part("b"))
        shard.answer(shard.part("a"))
    assert any("a" in members for members in shard.members)
    account = shard.machine.units["a"].account
    assert account.balanced and account.tokens < 1000


def test_a_wrong_body_does_not_count_for_the_quorum_that_gives_up_a_body_under_way() -> None:
    shard = Shard("a", "b", "c", quorum=2)
    for _ in range(WARM):
        for name in "abc":
            shard.answer(shard.part(name))
        shard.run(1)
    slow = shard.part("c")
    shard.tell(offered(slow, 20.0), *(offered(shard.part(name), 0.1) for name in "ab"))
    shard.tell(Received(shard.part("a"), 1e8), Received(shard.part("b"), 1.0))
    shard.run(10)
    assert shard.round().attempt == 0 and len(shard.refusals()) == 1
    shard.tell(Received(slow, 1.0))
    assert shard.members[-1] == ("b", "c")


def test_a_norm_does_not_pass_for_short_by_a_claim_of_many_steps() -> None:
    shard = Shard("a", "b", "c", quorum=3)
    many = 2000
    shard.answer(shard.part("a", steps=many, tokens=10 * many, trained=10 * many), 1e8)
    for name in "bc":
        shard.answer(shard.part(name))
    (why,) = shard.refusals()
    assert why.startswith("norm: 625 times the median") and shard.members == []


def test_time_for_steps_runs_from_the_pull_that_was_answered_though_a_later_attempt_merged_the_answer() -> (
    None
):
    shard = Shard("a", "b", "c", quorum=2, interval=8)
    shard.until_open()
    slow = shard.part("a")
    shard.tell(offered(slow, 100.0))
    for name in "bc":
        shard.answer(shard.part(name))
    shard.until_open()
    shard.tell(offered(shard.part("b"), 80.0))
    shard.run(190)
    assert shard.round().attempt == 1, "the body of b has not come, and that of a is carried over"
    shard.tell(Received(slow, 1.0))
    for name in "bc":
        shard.answer(shard.part(name))
    assert "a" in shard.members[-1]
    shard.until_open()
    shard.answer(shard.part("a"))
    assert shard.refusals() == []


def test_a_contribution_that_is_refused_counts_once_however_often_its_parts_come() -> None:
    shard = Shard("a", "b", quorum=2)
    part = shard.part("a", tokens=10**14, trained=10**14)
    shard.tell(offered(part), offered(part), Received(part, 1.0))
    assert len(shard.refusals()) == shard.machine.units["a"].refused == 1


def test_work_that_was_refused_is_replaced_by_a_newer_version_and_stands_in_the_ledger_as_refused() -> None:
    shard = Shard("a", "b")
    shard.answer(shard.part("b"))
    shard.answer(shard.part("a", anchor=0))
    shard.run(1)
    while "a" not in shard.members[-1]:
        shard.answer(shard.part("b"))
        shard.answer(shard.part("a"))
        shard.run(1)
    unit, version = shard.machine.units["a"], shard.machine.versions[0]
    shard.run(1)
    settled = unit.account.settled[0]
    shard.tell(offered(shard.part("a", tokens=10**9, trained=2 * 10**9)))
    shard.answer(shard.part("b"))
    assert shard.members[-1] == ("b",) and shard.machine.versions[0] > version
    lost = unit.account.position - settled
    shard.run(1)
    late = shard.part("a", anchor=version)
    assert f"the work since version {version} was refused" in shard.machine.admit(late)
    shard.answer(shard.part("a", steps=1, tokens=10))
    shard.answer(shard.part("b"))
    assert "a" in shard.members[-1], shard.notes[-5:]
    assert unit.account.discarded == {"Refused": lost} and unit.account.balanced


def test_the_only_unit_that_answers_is_refused_for_its_norm_in_seven_attempts_and_then_taken() -> None:
    """Otherwise a run with another live unit that never contributes would stand still."""
    shard = Shard("a", "b")
    while len(shard.members) < WARM:
        shard.answer(shard.part("a"))
        shard.run(1)
    merged = len(shard.members)
    for _ in range(400):
        if len(shard.members) > merged:
            break
        shard.answer(shard.part("a"), 1e8)
        shard.run(1)
    assert shard.members[merged:] == [("a",)]
    assert len(shard.refusals()) == ATTEMPTS


def boast(shard: Shard) -> None:
    """Unit b claims tokens that it cannot have trained, and only unit a is merged."""
    shard.tell(offered(shard.part("b", tokens=10**14, trained=10**14)))
    shard.answer(shard.part("a"))
    shard.run(1)


def test_a_unit_that_is_refused_again_and_again_is_suspect_and_its_successor_is_not() -> None:
    shard = Shard("a", "b")
    for _ in range(REFUSALS - 1):
        boast(shard)
    unit = shard.machine.units["b"]
    assert (unit.refused, unit.suspect) == (REFUSALS - 1, "")
    boast(shard)
    boast(shard)
    assert unit.suspect.startswith("8 of its newest 32 contributions were refused, the last one for tokens: ")
    told = [note for note in shard.notes if note["event"] == "suspect"]
    assert [(note["unit"], note["why"]) for note in told] == [("b", unit.suspect)], "it is told once"
    assert shard.machine.units["a"].suspect == ""
    report = unit_report(shard.machine, unit, None)
    assert (report.suspect, report.refusals, report.refused) == (unit.suspect, {"tokens": 9}, 9)
    restored = convert(json.loads(json.dumps(unit.record())), Unit, str_keys=True)
    assert (restored.suspect, restored.outcomes, restored.refusals) == (
        unit.suspect,
        0b111111111,
        {"tokens": 9},
    )
    shard.tell(joined("b", 2))
    assert (unit.suspect, unit.outcomes, unit.refused) == ("", 0, 9)


@pytest.mark.parametrize(
    ("outcomes", "suspect"),
    [
        pytest.param([], False, id="a-new-unit"),
        pytest.param([True] * (REFUSALS - 1), False, id="one-less-than-the-limit"),
        pytest.param([True] * REFUSALS, True, id="the-limit-at-once"),
        pytest.param([True, False, False, False] * REFUSALS, True, id="one-in-four"),
        pytest.param([True, False, False, False, False] * 100, False, id="one-in-five-for-ever"),
        pytest.param([True] * REFUSALS + [False] * (WINDOW - REFUSALS), True, id="just-within-the-window"),
        pytest.param([True] * REFUSALS + [False] * (WINDOW - REFUSALS + 1), False, id="long-ago"),
    ],
)
def test_a_unit_is_suspect_after_eight_refusals_among_32_contributions(
    outcomes: list[bool], suspect: bool
) -> None:
    """`outcomes`: the oldest first; True is a refusal."""
    bits = reduce(with_outcome, outcomes, 0)
    assert bool(suspicion(bits, "norm: too long")) is suspect


def test_an_incarnation_that_is_started_again_gets_no_token_merged_twice() -> None:
    """Its token count begins at 0 again. Its contributions are taken again when it is where the first one was."""
    shard = Story(units="a")

    def newest(steps: int) -> Part:
        """A part of the newest `steps` steps, against the newest version."""
        return shard.part("a", steps=steps, tokens=10 * steps)

    shard.run(3)
    shard.tell(Received(newest(3), 1.0))
    account = shard.machine.units["a"].account
    assert (account.merged, account.settled) == (30, {0: 30})
    shard.tell(joined("a"))
    shard.steps["a"] = 0
    shard.run(2)
    assert shard.machine.admit(newest(2)) == (
        "tokens: [0, 20) begin before 30, where all are merged or discarded already"
    )
    unit = shard.machine.units["a"]
    shard.tell(Received(newest(2), 1.0))
    shard.run(2)
    shard.tell(Received(newest(2), 1.0))
    assert account.merged == 30 and account.balanced and min(account.discarded.values(), default=0) >= 0
    shard.run(1)
    shard.tell(Received(newest(2), 1.0))
    assert account.merged == 50 and account.balanced and account.discarded == {}
    told = unit_report(shard.machine, unit, None)
    assert (told.repeated, told.refused, told.suspect) == (2, 0, ""), "the unit does nothing wrong"
