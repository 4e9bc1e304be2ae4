"""`atoll simulate links`, as it is called."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll_cli.__main__ import main
from atoll_runtime.contract import CommunicationSpec, OuterSpec, QuorumSpec
from atoll_runtime.protocol.communication import Communication, Rules
from atoll_runtime.simulate.fleet.links import Links

CHANGES = 0.85 / 0.98
"""Gbit/s that every round needs in int4: 12 · 10⁹ · 4.25 bit in 60 s, and 2 % to catch up."""
VERSIONS = 1.65
"""Gbit/s of all versions in int8, which whoever misses some fetches."""


def is_in_the_rounds_that_its_link_carries(unit: dict[str, Any], need: float) -> bool:
    """`need`: Gbit/s that every round needs. The unit never waits."""
    assert unit["need_gbps"] == pytest.approx(need)
    carries = unit["link_gbps"]
    share = min(1.0, carries / (VERSIONS if unit["codec"] == "int4" and carries < need else need))
    return unit["hidden_share"] == 1.0 and min(unit["member_share"], unit["merged_share"]) >= 0.9 * share


@pytest.mark.parametrize(
    ("codec", "needs", "steps"),
    [
        ("bf16", dict.fromkeys((2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0), 3.2), 150),  # 12 · 10⁹ · 16 bit in 60 s
        ("float32", {10.0: 6.4}, 100),
        ("int4", dict.fromkeys((0.4, 0.8, 0.9, 1.0, 1.2, 5.0), CHANGES), 600),
        *(("int4", {link: CHANGES, 5.0: CHANGES}, 216) for link in (0.47, 0.87, 0.88, 1.0, 1.2)),
    ],
)
def test_each_unit_is_in_as_many_rounds_as_its_link_carries_and_none_waits(
    codec: str, needs: dict[float, float], steps: int, ask: Any
) -> None:
    links = ",".join(map(str, needs))
    found = ask("links", "--links", links, "--codec", codec, "--steps", steps)[0]
    assert {unit["link_gbps"]: unit["codec"] for unit in found["units"]} == dict.fromkeys(needs, codec)
    assert found["goodput"] == pytest.approx(1.0)
    for unit, need in zip(found["units"], needs.values(), strict=True):
        assert is_in_the_rounds_that_its_link_carries(unit, need)


def test_slow_links_do_not_slow_others_where_few_fragments_leave_little_time_for_a_transfer(ask: Any) -> None:
    """A transfer takes a sixth of an interval or more. The slower links miss some of their rounds."""
    asked = ("--links", "2,2.5,3,3.5,4,4.5,5", "--fragments", "4", "--interval", "12", "--steps", "600")
    for unit in ask("links", *asked)[0]["units"]:
        share = min(1.0, unit["link_gbps"] / 3.2)
        assert unit["member_share"] >= (0.9 if share == 1.0 else 0.7 * share)
        assert unit["merged_share"] >= 0.9


def test_work_of_the_slowest_links_is_merged_although_its_anchor_is_a_hundred_intervals_old(ask: Any) -> None:
    asked = ("--codec", "auto", "--fragments", "8", "--interval", "8", "--steps", "1536")
    unit, _ = ask("links", "--links", "0.03,5", *asked)[0]["units"]
    assert unit["period"] > 80
    assert unit["merged_share"] > 0.7  # 21 contributions; the last ones are still on their way


@pytest.mark.parametrize(("fragments", "need"), [(1, 7.68), (2, 3.84)])  # 2 · 12 · 10⁹ · 16 bit / P in 50 s
def test_few_fragments_need_a_link_that_carries_two_transfers_in_an_interval_less_two_steps(
    ask: Any, fragments: int, need: float
) -> None:
    asked = ("--interval", "12", "--fragments", fragments, "--steps", "150")
    for unit in ask("links", "--links", f"{need},{need}", *asked)[0]["units"]:
        assert unit["need_gbps"] == pytest.approx(need) and unit["member_share"] == 1.0


def test_where_an_interval_is_too_short_for_a_round_trip_and_a_step_no_bandwidth_suffices(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--links", "50,1000,20000", "--fragments", "1", "--interval", "1", "--steps", "120")
    for unit in ask("links", *asked)[0]["units"]:
        assert unit["need_gbps"] is None and unit["member_share"] < 0.6
    assert main(["simulate", "links", *asked]) == 0
    out = capsys.readouterr().out
    assert "none" in out and "no bandwidth suffices for every round; outer.interval: 4 would do" in out
    for interval, needs in ((3, True), (2, False)):
        far = ("--links", "50,50", "--interval", interval, "--delay", 1250, "--steps", "120")  # r = 0.5
        assert [unit["need_gbps"] is not None for unit in ask("links", *far)[0]["units"]] == [needs, needs]


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0.0), (2, 0.0), (2, 7.0), (12, 0.0)])
def test_the_interval_that_a_slow_link_is_advised_carries_every_round(fragments: int, delay: float) -> None:
    used = Communication.begin(Rules(CommunicationSpec(codec="int4"), "bf16"))
    outer = OuterSpec(fragments=fragments, interval=12)
    asked = Links(
        gbps=[0.5],
        params=12e9,
        step_seconds=[5.0],
        outer=outer,
        communication=CommunicationSpec(),
        quorum=QuorumSpec(),
        delay=delay,
    )
    assert asked.need_gbps(used.bits) > 0.5
    longer = outer.model_copy(update={"interval": asked.fitting_interval(0.5, used)})
    assert replace(asked, outer=longer).need_gbps(used.bits) <= 0.5


@pytest.mark.parametrize("ends", [(2100,), (2600, 5100)], ids=["of one unit", "of one unit after the other"])
def test_a_run_goes_on_after_outages_that_are_longer_than_the_run(
    ask: Any, tmp_path: Path, ends: tuple[int, ...]
) -> None:
    outages = tmp_path / "outages.json"
    begins = (100, *ends)
    spans = [{"unit": n, "from": begins[n], "until": end} for n, end in enumerate(ends)]
    outages.write_text(json.dumps(spans))
    asked = ("--links", "5,5", "--quorum", "2", "--steps", "48", "--outages", outages)
    assert [unit["rounds"] for unit in ask("links", *asked)[0]["units"]] == [24, 24]


def test_a_unit_without_a_link_for_a_while_misses_those_rounds_alone(ask: Any, tmp_path: Path) -> None:
    outages = tmp_path / "outages.json"
    outages.write_text(json.dumps([{"unit": 1, "from": 500, "until": 620}]))
    found = ask("links", "--links", "5,5,5", "--outages", str(outages), "--steps", "400")[0]
    first, cut, last = (unit["member_share"] for unit in found["units"])
    assert first == last == 1.0
    # 24 rounds open in 120 s, of 376; those that the unit began before, and the first after, may be lost too.
    assert 1 - 3 * 24 / 376 < cut < 1 - 20 / 376


def test_the_table_has_a_row_for_each_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "links", "--links", "1,4", "--steps", "60", "--delay", "80"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "bf16" in line and "%" in line]) == 2


def test_units_that_choose_use_the_widest_codec_that_their_links_carry(ask: Any) -> None:
    asked = ("--codec", "auto", "--delay", "50", "--steps", "450")
    units = ask("links", "--links", "0.3,1,2,3,5", *asked)[0]["units"]
    assert [unit["codec"] for unit in units] == ["int4", "int4", "int4", "int8", "bf16"]
    assert all(type(unit["period"]) is float for unit in units)
    assert [unit["streams"] for unit in units] == [2, 5, 9, 14, 16]
    for unit, need in zip(units, (CHANGES, CHANGES, CHANGES, 1.65, 3.2), strict=True):
        assert is_in_the_rounds_that_its_link_carries(unit, need)
    assert [unit["period"] for unit in units] == [pytest.approx(1.65 / 0.3, rel=0.2), 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("asked", "rounds"),
    [
        (("--links", "100", "--fragments", "1"), 38),  # H = 1: one round in flight
        (("--links", "100,100", "--interval", "8"), 24),  # eight fragments
        (
            ("--links", "5", "--params", "1e8", "--step-time", "0.1s", "--delay", "10000"),
            24,
        ),  # a step waits for a round trip
        (("--links", "0.3"), 10),  # the clock follows the only link, eleven times slower than the steps
    ],
)
def test_settings_that_were_not_given_fit_those_that_were(
    ask: Any, asked: tuple[str, ...], rounds: int
) -> None:
    units = ask("links", *asked, "--steps", "48" if "--fragments" not in asked else "40")[0]["units"]
    for unit in units:
        assert unit["rounds"] >= rounds and unit["member_share"] == 1.0
