"""The rule of the election, and a simulated world of operators with clocks that differ: never two that act."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_operator.kube.lease import DEADLINE_SHARE, LOOK_SECONDS, RENEW_SHARE, Sight, lease_name, pause


@pytest.mark.parametrize(
    ("sight", "now", "wait"),
    [
        pytest.param(None, 0.0, 0.0, id="there-is-none"),
        pytest.param(Sight("", 10, 0.0), 0.1, 0.0, id="released"),
        pytest.param(Sight("me", 10, 0.0), 0.1, 0.0, id="ours"),
        pytest.param(Sight("me", 10, 0.0), 99.0, 0.0, id="ours-and-late"),
        pytest.param(Sight("you", 10, 0.0), 1.0, LOOK_SECONDS, id="held"),
        pytest.param(Sight("you", 10, 0.0), 9.5, 0.5, id="held-until-it-may-end"),
        pytest.param(Sight("you", 10, 0.0), 10.0, 0.0, id="not-renewed"),
        pytest.param(Sight("you", 30, 0.0), 10.0, LOOK_SECONDS, id="held-for-as-long-as-its-holder-said"),
    ],
)
def test_a_lease_is_judged_by_when_we_saw_it_change(sight: Sight | None, now: float, wait: float) -> None:
    assert pause(sight, "me", now) == wait


def test_operators_of_different_namespaces_do_not_exclude_each_other() -> None:
    names = [lease_name("o", namespaces) for namespaces in ((), ["a"], ["b"], ["a", "b"])]
    assert names[0] == "o" and len(set(names)) == 4
    assert names[3] == lease_name("o", ["b", "a"])


@dataclass
class Record:
    """The Lease in the API server."""

    holder: str = ""
    version: int = 0


@dataclass
class Party:
    """An operator whose clock runs at `rate`, and which may be cut off from the API server."""

    name: str
    rate: float
    offset: float
    seconds: float
    seen: int = -1
    sight: Sight | None = None
    until: float = float("-inf")
    next_step: float = 0.0
    cut_off: bool = False
    took: list[float] = field(default_factory=list)

    def clock(self, now: float) -> float:
        return self.offset + self.rate * now

    def acts(self, now: float) -> bool:
        return self.clock(now) < self.until

    def step(self, record: Record, now: float, jitter: float) -> None:
        mine = self.clock(now)
        self.next_step = now + (RENEW_SHARE * self.seconds if self.acts(now) else LOOK_SECONDS) * jitter
        if self.cut_off:
            return
        if record.version != self.seen:
            self.seen, self.sight = record.version, Sight(record.holder, self.seconds, mine)
        if wait := pause(self.sight, self.name, mine):
            self.next_step = now + wait / self.rate * jitter
        else:
            record.holder, record.version = self.name, record.version + 1
            self.seen, self.sight = record.version, Sight(self.name, self.seconds, mine)
            self.until = mine + DEADLINE_SHARE * self.seconds
            self.took.append(now)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    rates=st.lists(st.floats(min_value=0.9, max_value=1.1), min_size=2, max_size=4),
)
def test_never_two_operators_act_whatever_their_clocks_show_and_whoever_is_cut_off(
    seed: int, rates: list[float]
) -> None:
    dice = random.Random(seed)
    record = Record()
    parties = [
        Party(str(index), rate, dice.uniform(-1e6, 1e6), 10.0, next_step=dice.random())
        for index, rate in enumerate(rates)
    ]
    now = 0.0
    while now < 300.0:
        now += 0.1
        for party in parties:
            if dice.random() < 0.01:
                party.cut_off = not party.cut_off
            if party.next_step <= now:
                party.step(record, now, dice.uniform(0.9, 1.1))
        assert sum(party.acts(now) for party in parties) <= 1
    assert any(party.took for party in parties)


@given(died=st.floats(min_value=0.0, max_value=60.0), rate=st.floats(min_value=0.98, max_value=1.02))
def test_an_operator_that_died_is_followed_within_twelve_seconds(died: float, rate: float) -> None:
    record, first, second = Record(), Party("1", 1.0, 0.0, 10.0), Party("2", rate, 7e5, 10.0, next_step=0.5)
    now = 0.0
    while not second.took:
        if first.next_step <= now <= died:
            first.step(record, now, 1.0)
        if second.next_step <= now:
            second.step(record, now, 1.1)
        now += 0.1
        assert now < died + 12.0
    assert now > died or died < 0.5
