"""`atoll ledger`: figures, verdict and exit status, with a kubectl that prints what the test sets."""

from __future__ import annotations

import json
from typing import Any

import pytest


def account(trained: int, merged: int, in_flight: int = 0, **discarded: int) -> dict[str, Any]:
    return {
        "fragments": 8,
        "trained": trained,
        "merged": merged,
        "inFlight": in_flight,
        "discarded": discarded,
    }


ONE = account(8000, 6000, 804, Missed=1196)
TWO = account(80_000_000, 80_000_000)
BOTH = account(80_008_000, 80_006_000, 804, Missed=1196)


def item(kind: str, name: str, run: str, ledger: dict[str, Any] | None) -> dict[str, Any]:
    status = {"ledger": ledger} if ledger else {}
    return {"kind": kind, "metadata": {"name": name}, "spec": {"run": run} if run else {}, "status": status}


def listing(one: dict[str, Any] | None = ONE, own: dict[str, Any] | None = BOTH) -> list[dict[str, Any]]:
    return [
        item("TrainingRun", "demo", "", own),
        item("TrainingRun", "else", "", None),
        item("LearnerUnit", "demo-a-0", "demo", one),
        item("LearnerUnit", "demo-b-0", "demo", TWO),
        item("LearnerUnit", "else-a-0", "else", {**TWO, "merged": 0}),
    ]


def test_the_table_is_in_tokens_by_unit_and_in_all(atoll_on) -> None:
    status, out, _ = atoll_on(listing(), "ledger", "demo")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["UNIT", "TRAINED", "MERGED", "MISSED", "IN", "FLIGHT", "SHARE", "MERGED"]
    assert lines[1] == ["demo-a-0", "1,000", "750", "149.5", "100.5", "75.0", "%"]
    assert lines[2] == ["demo-b-0", "10,000,000", "10,000,000", "0", "0", "100.0", "%"]
    assert lines[3] == ["total", "10,001,000", "10,000,750", "149.5", "100.5", "100.0", "%"]
    assert lines[4][0] == "balanced:"
    assert len(lines) == 5


def test_a_token_without_a_fate_is_told_and_is_status_1(atoll_on) -> None:
    status, out, _ = atoll_on(listing({**ONE, "trained": 8012}), "ledger", "demo")
    assert status == 1
    assert out.splitlines()[-1] == "does not balance: demo-a-0 by 1.5 tokens (12 token-fragments)"


def test_json_is_exact(atoll_on) -> None:
    huge = 9_007_199_254_740_993  # no float has this value
    large = account(huge, huge - 1, 1)
    own = large | {"trained": huge + 80_000_000, "merged": huge - 1 + 80_000_000}
    status, out, _ = atoll_on(listing(large, own), "ledger", "demo", "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["run"], found["balanced"], set(found["units"])) == ("demo", True, {"demo-a-0", "demo-b-0"})
    assert found["units"]["demo-a-0"] == large | {"balance": 0, "waits": []}
    assert found["total"]["trained"] == huge + 80_000_000
    assert found["total"]["merged"] == huge - 1 + 80_000_000
    assert found["gone"]["trained"] == 0


def test_tokens_that_wait_for_a_link_are_listed_with_what_they_wait_for_and_since_when(atoll_on) -> None:
    wait = {"fragment": 3, "tokens": 4096, "since": 57, "what": "its link carries the contribution"}
    items = listing({**ONE, "waits": [wait]})
    status, out, _ = atoll_on(items, "ledger", "demo")
    assert status == 0
    assert out.splitlines()[4] == (
        "demo-a-0: 4,096 tokens of fragment 3 since step 57: its link carries the contribution"
    )
    assert json.loads(atoll_on(items, "ledger", "demo", "--json")[1])["units"]["demo-a-0"]["waits"] == [wait]


def test_tokens_of_units_that_are_gone_stay_in_the_total(atoll_on) -> None:
    left = [each for each in listing() if each["metadata"]["name"] != "demo-a-0"]
    status, out, _ = atoll_on(left, "ledger", "demo")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert [line[0] for line in lines[1:]] == ["demo-b-0", "gone", "total", "balanced:"]
    assert lines[2] == ["gone", "1,000", "750", "149.5", "100.5", "75.0", "%"]
    assert lines[3] == ["total", "10,001,000", "10,000,750", "149.5", "100.5", "100.0", "%"]
    found = json.loads(atoll_on(left, "ledger", "demo", "--json")[1])
    assert found["gone"] == ONE | {"balance": 0}
    assert found["total"] == BOTH | {"balance": 0}


def test_nothing_is_gone_where_the_units_were_written_after_their_run(atoll_on) -> None:
    newer = item("LearnerUnit", "demo-b-0", "demo", account(80_000_008, 80_000_008))
    status, out, _ = atoll_on([*listing()[:3], newer], "ledger", "demo", "--json")
    assert status == 0
    assert json.loads(out)["gone"] == account(0, 0) | {"balance": 0}


def test_tokens_with_another_fate_in_the_newer_ledger_of_the_run_leave_no_imbalance(atoll_on) -> None:
    newer = account(80_008_080, 80_006_804, 80, Missed=1196)  # 80 more were trained, 804 more merged
    found = json.loads(atoll_on(listing(own=newer), "ledger", "demo", "--json")[1])
    assert found["gone"] == account(804, 804) | {"balance": 0}


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("dmeo", "atoll: no TrainingRun is called 'dmeo' in this namespace\n"),
        ("else", "atoll: 'else' has no ledger yet: no unit has told its syncer of a token\n"),
    ],
)
def test_a_run_without_a_ledger_is_one_sentence_and_status_1(atoll_on, run: str, says: str) -> None:
    assert atoll_on(listing(), "ledger", run) == (1, "", says)
