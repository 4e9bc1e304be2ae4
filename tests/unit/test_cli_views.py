"""What is read from the API server, and how it is shown."""

from __future__ import annotations

import pytest

from atoll_cli.text import amount, headline, heals, held_out, losses, seconds, unit_table
from atoll_cli.views import RunView, Sample, sample_of

RUN = {
    "kind": "TrainingRun",
    "metadata": {"name": "demo"},
    "spec": {"target": {"globalSteps": 300}},
    "status": {
        "phase": "Running",
        "unitsSummary": "2/3",
        "globalStep": 120,
        "tokensPerSecond": 12345.0,
        "loss": 2.5,
        "quorum": "2/3 (K=1)",
        "bytesIn": 2_000_000,
        "bytesOut": 900,
        "checkpoint": {"step": 100},
        "conditions": [{"type": "Complete", "status": "False"}, {"type": "Failed", "status": "True"}],
    },
}
UNIT = {
    "kind": "LearnerUnit",
    "metadata": {"name": "demo-v5p-0"},
    "spec": {"run": "demo", "pool": "v5p"},
    "status": {
        "phase": "Learning",
        "incarnation": 2,
        "step": 130,
        "restartCount": 1,
        "lastHealSeconds": 8.25,
        "conditions": [{"type": "Learning", "status": "True"}],
    },
}
POD = {
    "kind": "Pod",
    "metadata": {
        "name": "demo-v5p-0-2-0",
        "uid": "u1",
        "labels": {"atoll.dev/run": "demo", "atoll.dev/unit": "demo-v5p-0"},
    },
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running", "containerStatuses": [{"restartCount": 1}]},
}
STRANGER = {"kind": "Pod", "metadata": {"name": "other", "uid": "u2"}, "spec": {}}
FOREIGN = {"kind": "LearnerUnit", "metadata": {"name": "else-0"}, "spec": {"run": "else"}}


def test_a_listing_becomes_a_sample_of_one_run() -> None:
    sample = sample_of("demo", [RUN, UNIT, FOREIGN, POD, STRANGER], 7.0)
    assert sample.run.step == 120
    assert sample.run.target == 300
    assert sample.run.failed
    assert not sample.run.complete
    assert list(sample.units) == ["demo-v5p-0"]
    assert sample.units["demo-v5p-0"].learning
    assert sample.units["demo-v5p-0"].restarts == 1
    assert [pod.uid for pod in sample.pods_of("demo-v5p-0")] == ["u1"]
    assert list(sample.pods) == ["demo-v5p-0-2-0"]


@pytest.mark.parametrize(
    ("loss", "shown"), [({"loss": 2.5}, "2.5000"), ({}, "not finite")], ids=["a-number", "not-finite"]
)
def test_the_newest_evaluation_is_shown_and_kept_in_a_record(loss, shown) -> None:
    evaluation = {"step": 100, "tokens": 65_536, "split": "heldout", **loss}
    run = {**RUN, "status": {**RUN["status"], "evaluation": evaluation}}
    sample = sample_of("demo", [run], 7.0)
    assert sample.run.held_out is not None
    assert held_out(sample.run.held_out) == f"held-out loss: {shown} at global step 100, over 65,536 tokens"
    assert Sample.from_record(sample.record()) == sample


def test_the_headline_has_every_figure_of_the_run() -> None:
    line = headline(sample_of("demo", [RUN], 7.0).run)
    assert line == (
        "Running · units 2/3 · step 120/300 · 12.3 k tokens/s · loss 2.500 · "
        "quorum 2/3 (K=1) · in 2.0 MB out 900 B"
    )


def test_the_table_of_units_has_a_line_each() -> None:
    lines = unit_table(sample_of("demo", [RUN, UNIT], 7.0)).splitlines()
    assert lines[0].split()[:3] == ["UNIT", "PHASE", "INCARNATION"]
    assert lines[1].split() == ["demo-v5p-0", "Learning", "2", "130", "-", "0", "1", "8.2", "s", "-"]


def test_the_wide_table_shows_the_link_of_a_unit_once_it_is_known() -> None:
    link = {"upGbps": 2.5, "downGbps": 12.34, "rttSeconds": 0.0421, "busyShare": 0.63, "failures": 2}
    link |= {"codec": "int4", "period": 2.5}
    linked = UNIT | {"metadata": {"name": "demo-v6e-0"}, "status": {"link": link}}
    assert unit_table(sample_of("demo", [linked], 7.0)).split()[-2:] == ["int4", "1/2.5"]
    lines = unit_table(sample_of("demo", [RUN, UNIT, linked], 7.0), wide=True).splitlines()
    assert [line.split()[-5:] for line in lines[1:]] == [
        ["-", "-", "-", "-", "-"],
        ["2.5/12.3", "42.1", "ms", "63%", "2"],
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (7.25, "7.2 s"), (42.4, "42 s"), (119.7, "2 min 00 s"), (185, "3 min 05 s")],
)
def test_seconds_are_readable(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e6, "2.5 MB"), (3e15, "3000.0 TB")]
)
def test_amounts_have_a_decimal_prefix(value: float, text: str) -> None:
    assert amount(value, "B") == text


STAGES = {"schedule": 0.0, "pull": 1.25, "start": 5.0, "restore": 2.0, "compile": 12.0, "catchUp": 0.75}


def healed(name: str, **status: object) -> dict[str, object]:
    return {"kind": "LearnerUnit", "metadata": {"name": name}, "spec": {"run": "demo"}, "status": status}


def test_a_line_for_each_unit_that_healed() -> None:
    sample = sample_of(
        "demo",
        [
            healed("demo-b-0", lastHealSeconds=21.0, lastHeal={"stages": STAGES}),
            healed("demo-a-0"),
            healed("demo-a-1", lastHealSeconds=3.0, lastHeal={"stages": {"schedule": 2.0}}),
        ],
        7.0,
    )
    assert heals(sample) == [
        "demo-a-1 healed in 3.0 s: schedule 2.0 s",
        "demo-b-0 healed in 21 s: schedule 0.0 s, pull 1.2 s, start 5.0 s, restore 2.0 s, compile 12 s, catch up 0.8 s",
    ]
    assert Sample.from_record(sample.record()) == sample


def test_a_line_for_each_reason_of_failures_the_dearest_first() -> None:
    costs = {
        "Hang": {"failures": 1, "seconds": 4.0, "chipSeconds": 16.0, "steps": 1},
        "NodeLost": {"failures": 2, "seconds": 185.0, "chipSeconds": 1480.0, "steps": 370},
    }
    run = {
        "kind": "TrainingRun",
        "metadata": {"name": "demo"},
        "spec": {},
        "status": {"lost": {"byReason": costs}},
    }
    sample = sample_of("demo", [run], 7.0)
    assert losses(sample.run) == [
        "lost to NodeLost: 2 failures, 3 min 05 s, 1,480 chip-seconds, 370 steps",
        "lost to Hang: 1 failure, 4.0 s, 16 chip-seconds, 1 step",
    ]
    assert Sample.from_record(sample.record()) == sample
    assert losses(RunView(name="r")) == []
