"""How a host uses its link: with the widest codec that fits, without switching back and forth, and with advice if none
fits."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.contract import CommunicationSpec, OuterSpec
from atoll_runtime.protocol.communication import (
    CODECS,
    GOAL,
    Communication,
    Mode,
    Observed,
    Rules,
    carries,
    choose,
    streams,
)

INTERVAL = 60.0
ELEMENTS = 12_000_000_000
FREE = Rules(CommunicationSpec(), "bf16")
RATES = st.floats(1e6, 1e11)
SPECS = st.builds(
    CommunicationSpec,
    codec=st.sampled_from((None, "bf16", "int8", "int4")),
    streams=st.sampled_from((None, 4)),
    chunk_kib=st.sampled_from((None, 256)),
    period=st.sampled_from((None, 1, 3)),
)


def seen(up: float, down: float = math.inf, round_trip: float = 0.0, transfers: int = 12) -> Observed:
    return Observed(
        up, min(down, up) if down == math.inf else down, round_trip, INTERVAL, ELEMENTS, transfers
    )


def settled(observed: Observed, rules: Rules = FREE, first: Communication | None = None) -> Communication:
    """The communication after some intervals in which nothing changes."""
    found = first or Communication.begin(rules)
    for n in range(8):
        found = choose(n * INTERVAL, found, observed, rules)
    return found


@pytest.mark.parametrize(
    ("gbps", "codec", "fetch", "period"),
    [
        (5.0, "bf16", "bf16", 1.0),
        (4.6, "bf16", "bf16", 1.0),
        (4.0, "int8", "int8", 1.0),
        (2.4, "int8", "int8", 1.0),
        (2.0, "int4", "int4", 1.0),
        (0.9, "int4", "int4", 1.0),
        (0.8, "int4", "int4", 1.0),
        (0.7, "int4", "int8", 2.41),
        (0.2, "int4", "int8", 8.42),
        (0.05, "int4", "int8", 33.67),
    ],
)
def test_the_widest_codec_is_used_whose_transfers_fit_else_fewer_rounds(
    gbps: float, codec: str, fetch: str, period: float
) -> None:
    found = settled(seen(gbps * 1e9))
    assert (found.codec, found.fetch) == (codec, fetch)
    assert found.period == pytest.approx(period, rel=0.01)
    assert not found.advice


@pytest.mark.parametrize(("up", "down"), [(1.0, 5.0), (5.0, 1.0)])
def test_the_slower_direction_decides(up: float, down: float) -> None:
    found = settled(seen(up * 1e9, down * 1e9))
    assert found.codec == settled(seen(1e9)).codec == "int4"
    assert f"{up:.3g} Gbit/s up and {down:.3g} Gbit/s down" in found.reason


def test_before_anything_is_measured_the_first_choice_stands() -> None:
    first = Communication.begin(FREE)
    assert (first.codec, first.streams, first.period) == ("bf16", 4, 1.0)
    unknown = choose(0.0, first, replace(seen(1e6), interval=0.0), FREE)
    assert (unknown.codec, unknown.period, unknown.since) == (first.codec, first.period, first.since)
    assert choose(0.0, first, seen(math.inf), FREE).codec == "bf16"


@given(RATES, RATES)
def test_a_faster_link_never_has_a_narrower_codec_or_a_longer_period(one: float, other: float) -> None:
    slow, fast = (settled(seen(rate)) for rate in sorted((one, other)))
    assert FREE.modes.index(Mode(fast.codec, fast.fetch)) <= FREE.modes.index(Mode(slow.codec, slow.fetch))
    assert fast.period <= slow.period * 1.2


@given(RATES, st.sampled_from(FREE.modes), SPECS)
def test_on_a_constant_link_nothing_changes_after_the_first_choice(
    rate: float, mode: Mode, fixed: CommunicationSpec
) -> None:
    rules = Rules(fixed, "bf16")
    first = Communication.begin(rules)
    if mode in rules.modes:
        first = replace(first, codec=mode.push, fetch=mode.fetch)
    once = choose(0.0, first, seen(rate, round_trip=0.1), rules)
    for n in range(1, 6):
        again = choose(n * INTERVAL, once, seen(rate, round_trip=0.1), rules)
        assert again.told == once.told


@given(st.lists(st.tuples(st.floats(0.1, 100.0), RATES, st.floats(0.0, 0.5)), min_size=2, max_size=40), SPECS)
def test_what_is_chosen_changes_once_in_an_interval_at_most(
    story: list[tuple[float, float, float]], fixed: CommunicationSpec
) -> None:
    rules = Rules(fixed, "bf16")
    now, found, changes = 0.0, Communication.begin(rules), []
    for seconds, rate, trip in story:
        now += seconds
        before, found = found, choose(now, found, seen(rate, round_trip=trip), rules)
        if found.told != before.told:
            changes.append(now)
    assert all(later - earlier >= INTERVAL for earlier, later in pairwise(changes))


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"down": 5e9}, {"codec", "fetch"}),
        ({"round_trip": 0.2}, {"streams", "chunk_kib"}),
        ({"interval": 5.0}, {"fetch", "period"}),
    ],
)
def test_the_first_choice_is_immediate_and_each_other_change_waits_for_the_end_of_an_interval(
    changes: dict[str, float], differs: set[str]
) -> None:
    link = seen(5e9, 2e9)
    unknown = choose(1.0, Communication.begin(FREE), replace(link, down=math.inf), FREE)
    first = choose(2.0, unknown, link, FREE)
    assert first.told == settled(link).told != unknown.told != Communication.begin(FREE).told
    changed = replace(link, **changes)
    assert choose(1.9 + changed.interval, first, changed, FREE).told == first.told
    later = choose(2.0 + changed.interval, first, changed, FREE)
    assert {name for name, value in later.told.items() if value != first.told[name]} == differs


@given(st.floats(0.56, 0.69), st.integers(0, 1))
def test_between_the_two_thresholds_a_codec_is_kept(load: float, at: int) -> None:
    mode, narrower = FREE.modes[at : at + 2]
    rate = ELEMENTS * {"bf16": 16, "int8": 8.25}[mode.push] / INTERVAL / load
    for kept in (mode, narrower):
        first = replace(Communication.begin(FREE), codec=kept.push, fetch=kept.fetch)
        assert settled(seen(rate), first=first).codec == kept.push


@given(st.floats(1.01, 1.19))
def test_changes_are_kept_where_an_interval_seems_short_and_chosen_again_where_they_fit(load: float) -> None:
    """Whoever skips rounds fetches int8 and is in half of them."""
    rate = ELEMENTS * 4.25 / INTERVAL / load
    changes, whole = (
        replace(Communication.begin(FREE), codec="int4", fetch=fetch, period=1.0)
        for fetch in ("int4", "int8")
    )
    assert settled(seen(rate), first=changes).fetch == "int4"
    assert settled(seen(rate), first=whole).fetch == "int8"
    assert settled(seen(1.01 * rate * load), first=whole).fetch == "int4"


@given(RATES, SPECS)
def test_what_is_fixed_is_kept(rate: float, fixed: CommunicationSpec) -> None:
    found = settled(seen(rate, round_trip=0.2), Rules(fixed, "bf16"))
    assert fixed.codec in (None, found.codec)
    assert fixed.streams in (None, found.streams)
    assert fixed.chunk_kib in (None, found.chunk_kib)
    assert found.period >= (fixed.period or 1)


def fixed(exact: bool = False, **settings: Any) -> Rules:
    """Rules with these settings. `exact`: with audits."""
    return Rules(CommunicationSpec(**settings), "bf16", exact)


@pytest.mark.parametrize(
    ("gbps", "rules", "advice"),
    [
        (5.0, fixed(codec="bf16"), ""),
        (2.6, fixed(codec="bf16"), "communication.codec: int8 takes 0.63 of 1 interval(s)"),
        (1.5, fixed(codec="int8"), "communication.codec: int4 takes 0.57 of 1 interval(s)"),
        (0.5, fixed(codec="bf16"), "communication.period: 5 with communication.codec int4, or leave"),
        (0.5, fixed(period=1), "communication.period: 5 with codec int4, or leave both out"),
        (0.5, fixed(codec="bf16", period=5), "communication.codec: int8 takes 0.66 of 5 interval(s)"),
        (0.5, FREE, ""),
        (0.5, fixed(period=8), ""),
        (0.34, fixed(streams=1), "communication.streams: 8, or leave it out"),
        (1.0, fixed(streams=3, codec="bf16"), "communication.streams: 14, or leave it out"),
        (0.6, fixed(streams=3, codec="bf16"), "communication.period: 4 with communication.codec int4"),
        (1.3, fixed(streams=4), ""),
        (2.6, fixed(streams=32, codec="bf16"), "communication.codec: int8 takes 0.63 of 1 interval(s)"),
        (2.6, fixed(exact=True), "outer.codec: int8 takes 0.63 of 1 interval(s)"),
        (2.6, fixed(exact=True, codec="bf16"), "communication.codec: int8 takes 0.63 of 1 interval(s)"),
        (0.5, fixed(exact=True), "communication.period: 3 with outer.codec int4"),
        (0.5, Rules(CommunicationSpec(), "int4", exact=True), ""),
        (5.0, fixed(exact=True), ""),
    ],
)
def test_a_setting_that_cannot_work_is_told_with_one_that_would(
    gbps: float, rules: Rules, advice: str
) -> None:
    """Too few streams, or a codec or a period, also where audits fix the codec. At a round trip of 100 ms a stream
    carries 0.34 Gbit/s."""
    found = settled(seen(gbps * 1e9, round_trip=0.1), rules).advice
    assert found.startswith(advice) and bool(found) == bool(advice)


@given(RATES, SPECS.filter(lambda fixed: fixed.codec is not None))
def test_the_setting_that_is_advised_works(rate: float, fixed: CommunicationSpec) -> None:
    """With the advised setting there is no more advice."""
    advice = settled(seen(rate), Rules(fixed, "bf16")).advice
    if advice.startswith("communication.codec"):
        better = fixed.model_copy(update={"codec": advice.split()[1]})
    elif advice:
        period = int(advice.split()[1])
        if period > 64:
            return
        better = CommunicationSpec(codec="int4", period=period)
    else:
        return
    found = settled(seen(rate), Rules(better, "bf16"))
    assert not found.advice and found.load <= GOAL * (better.period or 1) * 1.001


@pytest.mark.parametrize(
    ("gbps", "round_trip", "found"),
    [(10.0, 0.0, 1), (0.05, 0.3, 1), (0.3, 0.1, 2), (2.5, 0.1, 12), (40.0, 0.2, 16)],
)
def test_as_many_streams_are_used_as_a_round_trip_holds(gbps: float, round_trip: float, found: int) -> None:
    assert streams(1, gbps * 1e9, round_trip) == found


@given(RATES, st.floats(0.0, 0.5))
def test_a_chunk_is_a_twentieth_of_a_second_of_one_stream_within_bounds(rate: float, trip: float) -> None:
    found = settled(seen(rate, round_trip=trip))
    exact = min(max(rate / 8 / found.streams * 0.05 / 1024, 64), 4096)
    assert exact / 2 <= found.chunk_kib <= exact * 2 and 64 <= found.chunk_kib <= 4096


def test_transfers_that_take_no_time_are_not_encoded_more_narrowly() -> None:
    """With a small model and a short interval, most of the interval is latency."""
    small = Observed(1e6, 1e6, 0.0, 0.1, 6000, 10)
    assert Mode("bf16", "bf16").load(small) > GOAL
    assert settled(small).codec == "bf16"


def test_a_unit_that_skips_rounds_fetches_no_changes_however_short_its_transfers_are() -> None:
    """A version in int4 is of no use to a unit that has missed the one before."""
    small = Observed(2e9, 2e9, 0.0, 0.27, 160_000_000, 24)
    found = settled(small, Rules(CommunicationSpec(), "int4"))
    assert (found.codec, found.fetch, found.period) == ("int4", "int8", pytest.approx(2.5, rel=0.05))


def test_where_units_are_audited_all_have_the_same_codec() -> None:
    for widest in ("bf16", "int4"):
        found = settled(seen(1e8), Rules(CommunicationSpec(), widest, exact=True))
        assert (found.codec, found.fetch) == (widest, widest)
        assert found.period > 5


@pytest.mark.parametrize("widest", CODECS)
def test_hosts_use_no_wider_codec_than_the_run_has(widest: str) -> None:
    rules = Rules(CommunicationSpec(), widest)
    assert settled(seen(1e12), rules).codec == widest
    assert all(
        (carries(mode.push, widest) and carries(mode.fetch, "bf16")) or widest == "float32"
        for mode in rules.modes
    )
    assert not carries("zip", widest)


@pytest.mark.parametrize(("codec", "widest"), [("float32", "bf16"), ("bf16", "int8"), ("int8", "int4")])
def test_a_fixed_codec_that_is_wider_than_the_runs_is_refused_by_name(
    codec: str, widest: str, make_run: object
) -> None:
    with pytest.raises(
        ValueError, match=rf"communication\.codec: {codec} is wider than outer\.codec, which is {widest}"
    ):
        make_run(outer=OuterSpec(codec=widest), communication=CommunicationSpec(codec=codec))  # type: ignore[operator]


def test_a_rate_that_is_not_known_is_no_reason_for_a_wider_codec() -> None:
    narrow = settled(seen(1e9))
    assert narrow.codec == "int4"
    assert choose(100 * INTERVAL, narrow, seen(math.inf, math.inf), FREE).codec == "int4"
