"""Where a heal's time went, as `atoll status` shows it."""

from __future__ import annotations

from atoll_cli.text import heals, losses
from atoll_cli.views import RunView, Sample, sample_of

STAGES = {"schedule": 0.0, "pull": 1.25, "start": 5.0, "restore": 2.0, "compile": 12.0, "catchUp": 0.75}


def unit(name: str, **status: object) -> dict[str, object]:
    return {"kind": "LearnerUnit", "metadata": {"name": name}, "spec": {"run": "demo"}, "status": status}


def test_a_line_for_each_unit_that_healed() -> None:
    sample = sample_of(
        "demo",
        [
            unit("demo-b-0", lastHealSeconds=21.0, lastHeal={"stages": STAGES}),
            unit("demo-a-0"),
            unit("demo-a-1", lastHealSeconds=3.0, lastHeal={"stages": {"schedule": 2.0}}),
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
