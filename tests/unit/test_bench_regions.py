"""The arithmetic of `atoll bench regions`: scaled rates, and the record of a region that is cut off."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_bench.regions.measure import Outage
from atoll_bench.regions.setting import Setting
from atoll_bench.regions.wan import scale_of
from atoll_cli.errors import CommandError
from atoll_runtime.contract import BeginningReport, LedgerReport, SyncerStatus, UnitReport

STARTED = 1000.0


def test_bytes_of_a_step_take_the_same_part_of_it_as_those_of_the_large_model() -> None:
    small, step = 250_000, 0.1
    for gbps in (2, 5):
        large = 12e9 * 16 / (gbps * 1e9) / 5.0
        assert small * 16 / (gbps * 1e9 * scale_of(small, step)) / step == pytest.approx(large)


def test_no_cut_of_the_model_is_made_during_a_training_and_its_seed_is_that_of_model_and_data() -> None:
    run = Setting("file:///data", 100).run(3, "file:///bucket", "syncer")
    assert run.checkpoint.interval_steps > run.target.global_steps == 100
    assert (run.model.seed, run.data.seed) == (3, 3)


class Links:
    """Records which region is cut."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, bool]] = []

    def cut(self, name: str, cut: bool) -> None:
        self.changes.append((name, cut))


def status(seconds: float, away: int, contributions: int) -> SyncerStatus:
    """The status `seconds` after the first step, with steps of 1 s. The region that is cut has made `away` steps."""
    steps = {"east": away, "west": int(seconds)}
    return SyncerStatus(
        run_uid="u",
        phase="Running",
        global_step=int(seconds),
        time=STARTED + seconds,
        units={
            name: UnitReport(
                incarnation=1, hosts=1, state="Learning", step=step, contributions=contributions,
                beginning=BeginningReport(joined=0.0, stepped=STARTED, compiling=0.0),
            )
            for name, step in steps.items()
        },
        ledger={"east": LedgerReport(trained=10, merged=8, in_flight=2), "west": LedgerReport(trained=4)},
    )  # fmt: skip


def test_a_region_is_cut_off_for_its_time_and_noted_when_it_is_merged_again() -> None:
    links: Any = Links()
    outage = Outage(links, "east", steps=100, seconds=50)
    for seconds, away, contributions in (
        (10, 10, 1),
        (21, 21, 2),
        (50, 21, 2),
        (72, 21, 3),
        (83, 83, 3),
        (85, 85, 4),
    ):
        outage(status(seconds, away, contributions))
    assert links.changes == [("east", True), ("east", False)]
    assert outage.document(status(100, 100, 9)) == {
        "region": "east",
        "from_s": 21,
        "seconds": 51,
        "steps_until_merged_again": {"east": 64, "west": 64},
        "merged_again_s": 13,
        "incarnation": 1,
        "merged_share": {"east": 0.8, "west": 0.0},
        "ledger_balances": False,
    }


def test_the_link_is_back_before_the_run_is_over() -> None:
    links: Any = Links()
    outage = Outage(links, "east", steps=100, seconds=1000)
    for seconds in (10, 20, 84, 85, 90):
        outage(status(seconds, seconds, 1))
    assert [cut for *_, cut in links.changes] == [True, False]
    assert outage.document(status(100, 100, 1))["seconds"] == 65


def test_a_run_that_ends_during_the_cut_shows_nothing() -> None:
    links: Any = Links()
    outage = Outage(links, "east", steps=100, seconds=50)
    outage(status(30, 30, 1))
    with pytest.raises(CommandError, match="run of 50 s ended before the cut of east did"):
        outage.document(status(50, 30, 1))
