"""The demo's verdict names each thing that the demo must show but does not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.demo.verdict import Fault, healed, judge, render
from atoll_cli.views import LedgerView, PodView, RunView, Sample, UnitView

KILL = Fault(kind="unit", victim="a", unit="a", at=100.0, healed_at=112.0)
UNTRAINED = HeldOut(step=0, loss=5.5, tokens=1000)
LEDGER = LedgerView(fragments=8, trained=80, merged=70, discarded={"lost": 10})

KEYS = {
    "passed", "failures", "run", "victim", "healSeconds", "healSecondsOperator", "stepsOfOthers",
    "incarnationBefore", "incarnationAfter", "seededStep", "podsKept", "lossFirst", "lossAtKill",
    "lossAfterHeal", "lossLast", "heldOutUntrained", "heldOutTrained", "heldOutTokens", "marginWanted",
    "margin", "globalStep", "targetStep", "tokens", "complete", "checkpoint", "faults", "unbalanced",
    "syncerRestarts", "timings",
}  # fmt: skip


def make_unit(name: str, step: int, *, incarnation: int = 1, learning: bool = True) -> UnitView:
    return UnitView(name=name, step=step, incarnation=incarnation, learning=learning, seeded_step=50)


def make_pods(victim_incarnation: int = 1, other_uid: str = "b-uid") -> dict[str, PodView]:
    pods = [
        PodView(name=f"a-{victim_incarnation}-0", uid=f"a{victim_incarnation}-uid-0", unit="a"),
        PodView(name=f"a-{victim_incarnation}-1", uid=f"a{victim_incarnation}-uid-1", unit="a"),
        PodView(name="b-1-0", uid=other_uid, unit="b"),
        PodView(name="run-syncer-0", uid="syncer-uid"),
    ]
    return {pod.name: pod for pod in pods}


def make_run(step: int, **changes: object) -> RunView:
    run = RunView(name="run", phase="Running", step=step, target=300, loss=5.0 - step / 100)
    return dataclasses.replace(run, **changes)  # type: ignore[arg-type]


def make_samples() -> list[Sample]:
    """A demo without faults: killed at 100, healed at 112, complete at 200."""
    both = {"a": make_unit("a", 150), "b": make_unit("b", 150)}
    waiting = {"a": make_unit("a", 150, incarnation=2, learning=False), "b": make_unit("b", 156)}
    back = {"a": make_unit("a", 160, incarnation=2), "b": make_unit("b", 165)}
    done = {"a": make_unit("a", 300, incarnation=2), "b": make_unit("b", 310)}
    complete = make_run(300, phase="Complete", complete=True, final_checkpoint="gs://bucket/run/global/300")
    return [
        Sample(time=99.0, run=make_run(150), units=both, pods=make_pods()),
        Sample(time=105.0, run=make_run(156), units=waiting, pods=make_pods(2)),
        Sample(time=112.0, run=make_run(165), units=back, pods=make_pods(2)),
        Sample(time=200.0, run=complete, units=done, pods={}),
    ]


def seen(**changes: Any) -> dict[str, Any]:
    """What `judge` takes, of that demo."""
    return {
        "samples": make_samples(),
        "faults": [KILL],
        "ledgers": {"run": LEDGER, "a": LEDGER, "b": LEDGER},
        "evaluations": (UNTRAINED, HeldOut(step=300, loss=2.5, tokens=1000)),
        "margin": 1.0,
        "timings": {"heal": 12.345},
        **changes,
    }


def changed(index: int, **changes: Any) -> dict[str, Any]:
    """With one sample that differs."""
    samples = make_samples()
    samples[index] = dataclasses.replace(samples[index], **changes)
    return seen(samples=samples)


def test_a_demo_as_it_should_be_passes_and_has_its_figures() -> None:
    summary = judge(**seen())
    assert set(summary) == KEYS
    assert summary["passed"] and summary["failures"] == []
    assert summary["healSeconds"] == pytest.approx(12.0)
    assert summary["stepsOfOthers"] == {"b": 15}
    assert (summary["incarnationBefore"], summary["incarnationAfter"]) == (1, 2)
    assert summary["margin"] == pytest.approx(3.0)
    assert summary["podsKept"]
    assert summary["lossAtKill"] == pytest.approx(3.5)
    assert summary["checkpoint"] == "gs://bucket/run/global/300"
    assert json.loads(json.dumps(summary))["timings"] == {"heal": 12.35}
    assert "all of it happened" in render(summary)


def of_syncer(restarts: int) -> dict[str, Any]:
    """The syncer was killed after the unit."""
    faults = [KILL, Fault(kind="syncer", victim="run-syncer-0", at=112.0, healed_at=200.0)]
    last = dataclasses.replace(make_samples()[3].run, syncer_restarts=restarts)
    return changed(3, run=last) | {"faults": faults}


def of_three(fault: Fault) -> dict[str, Any]:
    """A third unit makes no step, because of this fault."""
    samples = [
        dataclasses.replace(sample, units={**sample.units, "c": make_unit("c", 100)})
        for sample in make_samples()
    ]
    ledgers = dict.fromkeys(("run", "a", "b", "c"), LEDGER)
    return seen(samples=samples, faults=sorted([KILL, fault], key=lambda each: each.at), ledgers=ledgers)


B, BACK = make_unit("b", 150), make_unit("a", 300, incarnation=2)
LOST = Fault(kind="node", victim="node-c", unit="c", at=99.5, healed_at=112.0)
LEDGERS = {"run": LEDGER, "a": LEDGER}
REPLACED = "pods of other units were replaced, or restarted"
MISSING = {
    "others stopped": (
        changed(2, units={"a": make_unit("a", 160, incarnation=2), "b": B}), "made no step while a healed: b",
    ),
    "another pod during the heal": (changed(2, pods=make_pods(2, other_uid="another")), REPLACED),
    "no pod during the heal": (changed(1, pods={}), REPLACED),
    "another process after the heal": (
        changed(3, units={"a": BACK, "b": make_unit("b", 310, incarnation=2)}, pods=make_pods(2)), REPLACED,
    ),
    "no checkpoint for the heal": (
        changed(3, units={"a": dataclasses.replace(make_unit("a", 300), seeded_step=None)}),
        "a came back without a checkpoint",
    ),
    "too small a gain": (
        seen(evaluations=(UNTRAINED, HeldOut(step=300, loss=5.0, tokens=1000))),
        "the global model gained 0.500 nats per token on held-out text, 1.000 were wanted",
    ),
    "a loss that is no number": (
        seen(evaluations=(UNTRAINED, HeldOut(step=300, loss=float("nan"), tokens=1000))),
        "the global model gained nan nats per token on held-out text, 1.000 were wanted",
    ),
    "a syncer without its journal": (of_syncer(0), "the syncer did not resume from its journal"),
    "another fault later": (
        of_three(dataclasses.replace(LOST, at=112.0, healed_at=200.0)), "made no step while a healed: c",
    ),
    "a ledger with too little": (
        seen(ledgers=LEDGERS | {"b": dataclasses.replace(LEDGER, merged=69)}),
        "the ledger does not balance: b",
    ),
    "no ledger": (seen(ledgers=LEDGERS), "the ledger does not balance: b"),
    "no other unit": (
        seen(samples=[dataclasses.replace(each, units={"a": each.units["a"]}) for each in make_samples()]),
        "there was no unit that could have gone on while a healed",
    ),
}  # fmt: skip
"""Observations, and what the verdict says did not happen."""


@pytest.mark.parametrize(("shown", "words"), MISSING.values(), ids=MISSING)
def test_what_did_not_happen_is_named(shown: dict[str, Any], words: str) -> None:
    summary = judge(**shown)
    assert words in summary["failures"] and not summary["passed"]
    assert f"did not happen: {words}" in render(summary)


def test_a_unit_is_healed_when_a_later_incarnation_is_merged() -> None:
    assert [healed(sample, "a", 1) for sample in make_samples()[:3]] == [False, False, True]


def test_a_killed_syncer_that_resumes_is_as_it_should_be() -> None:
    assert judge(**of_syncer(1))["failures"] == []


def test_a_unit_that_another_fault_hits_at_the_same_time_need_not_go_on() -> None:
    summary = judge(**of_three(LOST))
    assert summary["failures"] == []
    assert [fault["stepsOfOthers"] for fault in summary["faults"]] == [{"b": 15}, {"b": 15}]
