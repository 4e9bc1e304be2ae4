"""The evaluator's part of a run's plan: when its pod is wanted, and what the run's status says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from objects import RUN

from atoll_operator.api.conditions import EVALUATED, RUN_CONDITIONS
from atoll_operator.api.trainingrun import EvaluationStatus, TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.conditions import find
from atoll_operator.plan.pods.evaluator import UNAVAILABLE, EvaluatorState
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.objects import RunObserved
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.run.shards import FeedState
from atoll_runtime.contract import EvaluationReport, EvaluatorStatus, SyncerStatus, parse_evaluation

NOW = 1_700_000_000.0
RESULT = EvaluationReport(step=50, loss=3.25, tokens=65_536, split="heldout", seconds=2, time=NOW)
FINAL = RESULT.model_copy(update={"step": 100, "loss": 2.5})
CRASHING = PodView(
    name="r-evaluator-0", exit_code=64, exit_message="DataInvalid: splits: 'heldout' is missing"
)


def make_run(evaluation: dict[str, Any] | None = None, **changes: Any) -> RunObserved:
    spec = {**RUN["spec"], "evaluation": evaluation or {}, **changes.pop("spec", {})}
    values: dict[str, Any] = {
        "name": "r", "namespace": "ns", "uid": "u", "generation": 3, "status": TrainingRunStatus(),
        "spec": TrainingRunSpec.model_validate(spec), "units": {},
        "settings": PodSettings(run="r", image="runtime:1", pull_policy="Always", environment={"X": "1"}),
        "evaluator_pods": (PodView(name="r-evaluator-0"),),
    }  # fmt: skip
    return RunObserved(**(values | changes))


def says(newest: EvaluationReport | None = None, **changes: Any) -> EvaluatorState:
    phase = changes.pop("phase", "Waiting")
    return EvaluatorState(EvaluatorStatus(run_uid="u", phase=phase, newest=newest, **changes))


def feed(phase: str) -> FeedState:
    return FeedState(status=SyncerStatus(run_uid="u", phase=phase, global_step=100), answering_since=NOW)


def complete(evaluation: dict[str, Any] | None = None, **changes: Any) -> RunObserved:
    """A run that was complete before this pass, at `NOW`."""
    running = make_run(evaluation, feed=feed("Finished"), **changes)
    return replace(running, status=plan_run(running, NOW).status)


def evaluator_set(plan: RunPlan) -> dict[str, Any] | None:
    found = list(plan.evaluator)
    assert [body["kind"] for body in found] in ([], ["Service", "StatefulSet"])
    return found[1]["spec"] if found else None


def evaluated(plan: RunPlan) -> tuple[str, str, str]:
    found = find(plan.status.conditions, EVALUATED)
    assert found is not None
    return found.status, found.reason, found.message


def test_a_run_without_the_section_has_neither_pod_nor_condition() -> None:
    run = make_run(spec={"evaluation": None})
    plan = plan_run(run, NOW)
    assert evaluator_set(plan) is None
    assert not plan.evaluate
    assert not plan.remove
    assert tuple(item.type for item in plan.status.conditions) == RUN_CONDITIONS
    assert plan.status.evaluation is None


def test_the_pod_is_told_what_to_measure_and_runs_where_the_spec_says() -> None:
    evaluation = {
        "split": "train", "tokens": 4096, "sequenceLength": 256, "image": "mine:2",
        "resources": {"limits": {"cpu": "4"}}, "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "spare", "operator": "Exists"}],
    }  # fmt: skip
    plan = plan_run(make_run(evaluation), NOW)
    found = evaluator_set(plan)
    assert found is not None
    assert found["replicas"] == 1
    pod = found["template"]["spec"]
    main = pod["containers"][0]
    assert main["command"] == ["python", "-m", "atoll_runtime.evaluator"]
    assert main["image"] == "mine:2"
    assert main["resources"]["limits"] == {"cpu": "4"}
    assert (pod["nodeSelector"], pod["tolerations"][-1]["key"]) == ({"pool": "cpu"}, "spare")
    environment = {item["name"]: item["value"] for item in main["env"]}
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["X"] == "1"
    told = parse_evaluation(environment["ATOLL_EVALUATION"])
    assert (told.split, told.tokens, told.sequence_length, told.status_port) == ("train", 4096, 256, 7401)
    assert {volume["name"] for volume in pod["volumes"]} == {"run", "tls", "tmp"}
    assert plan.evaluate


def test_the_runs_own_image_is_the_default_and_other_pods_are_not_told_of_the_evaluation() -> None:
    evaluation, none = make_run({"tokens": 4096}), make_run(spec={"evaluation": None})
    found = evaluator_set(plan_run(evaluation, NOW))
    assert found is not None
    assert found["template"]["spec"]["containers"][0]["image"] == "runtime:1"
    others = [
        [body for body in plan_run(run, NOW).apply if body["metadata"]["name"] != "r-evaluator"]
        for run in (evaluation, none)
    ]
    assert others[0] == others[1], "a change of the evaluation restarts no syncer and no learner"
    assert "evaluation" not in json.loads(others[0][0]["data"]["run.json"])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        pytest.param({}, ("False", "EvaluatorStarting", ""), id="not-asked-yet"),
        pytest.param(
            {"evaluator": EvaluatorState(None, UNAVAILABLE, "refused")},
            ("False", "EvaluatorStarting", "refused"), id="no-answer-yet",
        ),
        pytest.param(
            {"evaluator": EvaluatorState(None, UNAVAILABLE, "refused"), "evaluator_pods": ()},
            ("False", "EvaluatorStarting", "no pod r-evaluator-0: see kubectl describe statefulset r-evaluator"),
            id="no-pod",
        ),
        pytest.param(
            {
                "evaluator": EvaluatorState(None, UNAVAILABLE, "refused"),
                "evaluator_pods": (PodView(name="r-evaluator-0", unschedulable="0/3 nodes: cpu"),),
            },
            ("False", "EvaluatorStarting", "r-evaluator-0: 0/3 nodes: cpu"), id="no-node",
        ),
        pytest.param(
            {"evaluator": replace(says(RESULT), reason=UNAVAILABLE, message="refused")},
            ("False", UNAVAILABLE, "refused"), id="down",
        ),
        pytest.param(
            {"evaluator": EvaluatorState(None, "EvaluatorCertificateInvalid", "another's")},
            ("False", "EvaluatorCertificateInvalid", "another's"), id="certificate",
        ),
        pytest.param(
            {"evaluator": EvaluatorState(None, UNAVAILABLE, "refused"), "evaluator_pods": (CRASHING,)},
            ("False", "EvaluatorFailed", "r-evaluator-0 ended: DataInvalid: splits: 'heldout' is missing"),
            id="crashing",
        ),
        pytest.param(
            {"evaluator": says(message="waits for a checkpoint")},
            ("False", "NoResult", "waits for a checkpoint"), id="no-checkpoint",
        ),
        pytest.param(
            {"evaluator": says(RESULT, error="global step 60 is not evaluated: checksum")},
            ("False", "EvaluationFailed", "global step 60 is not evaluated: checksum"), id="damaged",
        ),
        pytest.param(
            {"evaluator": says(RESULT.model_copy(update={"loss": None}))},
            ("False", "LossNotFinite", "global step 50: not finite nats per token over 65536 tokens of split heldout"),
            id="not-finite",
        ),
        pytest.param(
            {"evaluator": says(RESULT, phase="Evaluating"), "evaluator_pods": (replace(CRASHING, ready=True),)},
            ("True", "Evaluated", "global step 50: 3.2500 nats per token over 65536 tokens of split heldout"),
            id="evaluated",
        ),
        pytest.param({"spec": {"suspend": True}}, ("False", "Suspended", ""), id="suspended"),
        pytest.param({"feed": feed("Failed")}, ("False", "RunFailed", ""), id="failed"),
    ],
)  # fmt: skip
def test_the_condition(changes, wanted) -> None:
    assert evaluated(plan_run(make_run(**changes), NOW)) == wanted


def test_what_goes_wrong_with_it_is_told_once_and_does_not_touch_the_run() -> None:
    broken = make_run(feed=feed("Running"), evaluator_pods=(CRASHING,))
    fine = make_run(feed=feed("Running"), evaluator=says(RESULT))
    plan, other = plan_run(broken, NOW), plan_run(fine, NOW)
    assert [(notice.type, notice.reason) for notice in plan.notices] == [("Warning", "EvaluatorFailed")]
    assert not other.notices
    for name in RUN_CONDITIONS:
        assert find(plan.status.conditions, name) == find(other.status.conditions, name)
    assert plan.status.message == other.status.message


def test_a_result_stays_in_the_status_while_the_evaluator_is_silent() -> None:
    first = plan_run(make_run(evaluator=says(RESULT, evaluated=3, skipped=2)), NOW).status
    wanted = EvaluationStatus(**RESULT.model_dump(), evaluated=3, skipped=2)
    assert first.evaluation == wanted
    silent = make_run(status=first, evaluator=EvaluatorState(None, UNAVAILABLE, "refused"))
    assert plan_run(silent, NOW + 60).status.evaluation == wanted


def test_an_operator_that_was_started_again_believes_the_status_until_it_has_asked() -> None:
    first = plan_run(make_run(evaluator=says(RESULT)), NOW)
    again = plan_run(make_run(status=first.status), NOW + 60)
    assert again.status == first.status
    asked = make_run(status=first.status, evaluator=EvaluatorState(None, UNAVAILABLE, "refused"))
    assert evaluated(plan_run(asked, NOW + 61))[:2] == ("False", "EvaluatorStarting")


def test_a_suspended_run_has_no_evaluator_and_a_resumed_one_has_it_again() -> None:
    suspended = make_run(spec={"suspend": True}, evaluator=says(RESULT))
    plan = plan_run(suspended, NOW)
    found = evaluator_set(plan)
    assert found is not None
    assert (found["replicas"], plan.evaluate, plan.remove) == (0, False, ())
    assert plan.status.evaluation is not None
    back = evaluator_set(plan_run(make_run(status=plan.status), NOW + 1))
    assert back is not None
    assert back["replicas"] == 1


def test_what_is_not_wanted_any_more_is_removed_the_set_last() -> None:
    plan = plan_run(make_run(spec={"evaluation": None}, evaluator_there=True), NOW)
    assert [item.kind for item in plan.remove] == ["Service", "StatefulSet"]
    assert {item.name for item in plan.remove} == {"r-evaluator"}
    failed = make_run(feed=feed("Failed"), evaluator_there=True)
    after = plan_run(replace(failed, status=plan_run(failed, NOW).status), NOW)
    assert [item.name for item in after.remove] == ["r-evaluator", "r-evaluator"]


def test_the_end_of_the_run_does_not_wait_for_the_evaluator() -> None:
    plan = plan_run(make_run(feed=feed("Finished"), evaluator=says(RESULT)), NOW)
    assert plan.status.phase == "Complete"
    assert evaluated(plan)[:2] == ("False", "EvaluatesFinal")
    assert plan.evaluate, "what it says next is still of interest"


def test_it_outlives_the_run_until_the_final_checkpoint_is_evaluated() -> None:
    run = complete(evaluator=says(RESULT), evaluator_there=True)
    waiting = plan_run(run, NOW + 10)
    assert evaluator_set(waiting) is not None
    assert (waiting.evaluate, waiting.wake) == (True, NOW + 600)
    assert {item.name for item in waiting.remove} == {"r-syncer"}
    done = plan_run(replace(run, evaluator=says(FINAL)), NOW + 20)
    assert (evaluator_set(done), done.evaluate, done.wake) == (None, False, None)
    assert {item.name for item in done.remove} == {"r-syncer", "r-evaluator"}
    assert evaluated(done)[:2] == ("True", "Evaluated")
    assert done.status.evaluation is not None
    assert done.status.evaluation.loss == 2.5
    # another operator, which never heard of the evaluator
    later = plan_run(
        replace(run, status=done.status, evaluator=EvaluatorState(), feed=FeedState()), NOW + 9e3
    )
    assert later.status == done.status


def test_its_patience_after_the_end_has_a_bound_and_says_why_there_is_no_result() -> None:
    run = complete({"finalSeconds": 60}, evaluator=says(RESULT), evaluator_there=True)
    dead = replace(run, evaluator=EvaluatorState(None, UNAVAILABLE, "refused"), evaluator_pods=(CRASHING,))
    assert evaluator_set(plan_run(dead, NOW + 59)) is not None
    plan = plan_run(dead, NOW + 60)
    assert (evaluator_set(plan), plan.evaluate, plan.wake) == (None, False, None)
    status, reason, message = evaluated(plan)
    assert (status, reason) == ("False", "FinalNotEvaluated")
    assert message.startswith("the final checkpoint, of global step 100, is not evaluated after 60 s")
    assert "'heldout' is missing" in message
    assert [notice.reason for notice in plan.notices] == ["FinalNotEvaluated"]
    later = replace(run, status=plan.status, evaluator=EvaluatorState(), evaluator_pods=())
    assert plan_run(later, NOW + 70).status == plan.status, "the reason outlives the pod"


def test_a_run_that_deletes_itself_does_not_wait_for_it() -> None:
    run = complete(spec={"ttlSecondsAfterFinished": 5})
    assert plan_run(run, NOW + 5).delete
