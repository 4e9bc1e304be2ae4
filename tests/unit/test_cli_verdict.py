"""The demo's verdict names each thing that the demo must show but does not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.demo.report import render
from atoll_cli.demo.verdict import Fault, Observations
from atoll_cli.demo.verdict import judge as judge_with
from atoll_cli.views import LedgerView, PodView, RunView, Sample, UnitView

KILL = Fault(kind="unit", victim="a", unit="a", at=100.0, healed_at=112.0)
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


def make_observations(samples: list[Sample] | None = None, **changes: object) -> Observations:
    seen = Observations(
        samples=make_samples() if samples is None else samples,
        faults=[KILL],
        ledgers={"run": LEDGER, "a": LEDGER, "b": LEDGER},
        untrained=HeldOut(step=0, loss=5.5, tokens=1000),
        trained=HeldOut(step=300, loss=2.5, tokens=1000),
        margin=1.0,
    )
    return dataclasses.replace(seen, **changes)  # type: ignore[arg-type]


def judge(seen: Observations, heal_stage: float = 12.0) -> dict[str, Any]:
    return judge_with(seen, {"heal": heal_stage})


def change(samples: list[Sample], index: int, **changes: object) -> list[Sample]:
    samples[index] = dataclasses.replace(samples[index], **changes)  # type: ignore[arg-type]
    return samples


def test_a_demo_as_it_should_be_passes_and_has_its_figures() -> None:
    summary = judge(make_observations())
    assert summary["passed"] and summary["failures"] == []
    assert summary["healSeconds"] == pytest.approx(12.0)
    assert summary["stepsOfOthers"] == {"b": 15}
    assert (summary["incarnationBefore"], summary["incarnationAfter"]) == (1, 2)
    assert summary["margin"] == pytest.approx(3.0)
    assert summary["podsKept"]
    assert summary["lossAtKill"] == pytest.approx(3.5)
    assert summary["checkpoint"] == "gs://bucket/run/global/300"


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        pytest.param(
            change(
                make_samples(), 2, units={"a": make_unit("a", 160, incarnation=2), "b": make_unit("b", 150)}
            ),
            "made no step while a healed: b",
            id="others-stopped",
        ),
        pytest.param(
            change(make_samples(), 2, pods=make_pods(2, other_uid="another")),
            "pods of other units were replaced",
            id="replaced-during-the-heal",
        ),
        pytest.param(
            change(make_samples(), 1, pods={}), "pods of other units were replaced", id="gone-during-the-heal"
        ),
        pytest.param(
            change(make_samples(), 3, units={"b": make_unit("b", 310, incarnation=2)}, pods=make_pods(2)),
            "pods of other units were replaced, or restarted",
            id="restarted-after-it",
        ),
        pytest.param(
            change(
                make_samples(), 3, units={"a": dataclasses.replace(make_unit("a", 300), seeded_step=None)}
            ),
            "a came back without a checkpoint",
            id="without-a-checkpoint",
        ),
        pytest.param(
            change(make_samples(), 3, run=make_run(260)),
            "the run did not complete: step 260 of 300",
            id="not-complete",
        ),
        pytest.param(make_samples()[:2], "a was not reseeded", id="not-healed"),
    ],
)
def test_what_did_not_happen_is_named(samples: list[Sample], words: str) -> None:
    failures = judge(make_observations(samples))["failures"]
    assert any(words in failure for failure in failures), failures


def test_the_old_incarnation_still_shown_as_learning_is_no_heal() -> None:
    samples = make_samples()
    stale = dataclasses.replace(samples[0], time=101.0)
    assert judge(make_observations([samples[0], stale]))["healSeconds"] is None


def test_a_gain_below_the_margin_fails_with_both_figures() -> None:
    seen = make_observations(trained=HeldOut(step=300, loss=5.0, tokens=1000))
    assert judge(seen)["failures"] == [
        "the global model gained 0.500 nats per token on held-out text, 1.000 were wanted"
    ]


def test_a_loss_that_is_no_number_fails_the_margin() -> None:
    seen = make_observations(trained=HeldOut(step=300, loss=float("nan"), tokens=1000))
    assert any("held-out" in failure for failure in judge(seen)["failures"])


def test_a_killed_syncer_must_have_resumed() -> None:
    faults = [KILL, Fault(kind="syncer", victim="run-syncer-0", at=112.0, healed_at=200.0)]
    assert judge(make_observations(faults=faults))["failures"] == [
        "the syncer did not resume from its journal"
    ]
    samples = change(make_samples(), 3, run=dataclasses.replace(make_samples()[3].run, syncer_restarts=1))
    assert judge(make_observations(samples, faults=faults))["failures"] == []


def test_a_unit_that_another_fault_hits_at_the_same_time_need_not_go_on() -> None:
    samples = [
        dataclasses.replace(sample, units={**sample.units, "c": make_unit("c", 100)})
        for sample in make_samples()
    ]
    lost = Fault(kind="node", victim="node-c", unit="c", at=99.5, healed_at=112.0)
    ledgers = dict.fromkeys(("run", "a", "b", "c"), LEDGER)
    summary = judge(make_observations(samples, faults=[lost, KILL], ledgers=ledgers))
    assert summary["failures"] == []
    assert [fault["stepsOfOthers"] for fault in summary["faults"]] == [{"b": 15}, {"b": 15}]
    later = dataclasses.replace(lost, at=112.0, healed_at=200.0)
    summary = judge(make_observations(samples, faults=[KILL, later], ledgers=ledgers))
    assert summary["failures"] == ["made no step while a healed: c"]


@pytest.mark.parametrize("ledger", [dataclasses.replace(LEDGER, merged=69), None])
def test_a_ledger_that_does_not_balance_or_is_missing_fails(ledger: LedgerView | None) -> None:
    ledgers = {"run": LEDGER, "a": LEDGER} | ({} if ledger is None else {"b": ledger})
    assert judge(make_observations(ledgers=ledgers))["failures"] == ["the ledger does not balance: b"]


def test_a_run_of_one_unit_shows_nothing() -> None:
    samples = [dataclasses.replace(sample, units={"a": sample.units["a"]}) for sample in make_samples()]
    failures = judge(make_observations(samples))["failures"]
    assert "there was no unit that could have gone on while a healed" in failures


def test_no_sample_before_the_kill_is_an_error() -> None:
    with pytest.raises(ValueError, match="before the fault"):
        judge(make_observations(faults=[dataclasses.replace(KILL, at=1.0)]))


def test_the_json_has_stable_keys() -> None:
    document = judge(make_observations(), 12.345)
    assert set(document) == KEYS
    assert json.loads(json.dumps(document))["timings"] == {"heal": 12.35}


def test_the_report_says_what_did_not_happen() -> None:
    text = render(judge(make_observations(make_samples()[:2])))
    assert "did not happen: a was not reseeded" in text
    assert "all of it happened" in render(judge(make_observations()))
