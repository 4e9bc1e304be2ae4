"""Where a heal's time went, as `atoll status` shows it."""

from __future__ import annotations

from atoll_cli.text import heals
from atoll_cli.views import Sample, sample_of

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
