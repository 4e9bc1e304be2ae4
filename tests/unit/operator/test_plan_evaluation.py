"""The evaluator of a run: when its pod is wanted, and what the run's status says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from run_scene import NOW, RunScene, condition, pod, replicas

from atoll_operator.api.common import EVALUATED, RUN_CONDITIONS
from atoll_operator.api.trainingrun import EvaluationStatus
from atoll_operator.plan.conditions import find
from atoll_operator.plan.run.evaluation import UNAVAILABLE
from atoll_operator.plan.run.observed import EvaluatorState
from atoll_operator.plan.run.plan import RunPlan
from atoll_runtime.contract import EvaluationReport, EvaluatorStatus, parse_evaluation

RESULT = EvaluationReport(step=50, loss=3.25, tokens=65_536, split="heldout", seconds=2, time=NOW)
FINAL = RESULT.model_copy(update={"step": 100, "loss": 2.5})
NAME = "r-evaluator-0"
ENDED = {"exit_code": 64, "message": "DataInvalid: splits: 'heldout' is missing"}
CRASHING = pod(NAME, **ENDED)
UNHEARD = EvaluatorState()
REFUSED = UNHEARD.missed(UNAVAILABLE, "refused")


def evaluated_run(evaluation: dict[str, Any] | None = None, **observed: Any) -> RunScene:
    operator = {"image": "runtime:1", "environment": {"X": "1"}, "pull_policy": "Always"}
    scene = RunScene(operator=operator, evaluation=evaluation or {})
    return scene.unknown().see(**({"evaluator_pods": (pod(NAME),)} | observed))


def complete(evaluation: dict[str, Any] | None = None, **observed: Any) -> RunScene:
    """A run that was complete before this pass, at `NOW`."""
    scene = evaluated_run(evaluation, **observed).syncer("Finished", global_step=100)
    scene.step()
    return scene


def reports(newest: EvaluationReport | None = None, phase: Any = "Waiting", **changes: Any) -> EvaluatorState:
    return UNHEARD.heard(EvaluatorStatus(run_uid="u", phase=phase, newest=newest, **changes), NOW)


def wanted(plan: RunPlan) -> int | None:
    return replicas(plan, "r-evaluator")


def deleted(plan: RunPlan) -> set[tuple[str, str]]:
    return set(plan.delete)


def test_pod_has_the_contract_and_the_place_of_the_spec_and_other_pods_do_not_depend_on_it() -> None:
    evaluation = {
        "split": "train", "tokens": 4096, "sequenceLength": 256, "image": "mine:2",
        "resources": {"limits": {"cpu": "4"}}, "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "spare", "operator": "Exists"}],
    }  # fmt: skip
    plan = evaluated_run(evaluation).plan()
    assert (wanted(plan), plan.poll_evaluator) == (1, True)
    pod = plan.apply_evaluator[1]["spec"]["template"]["spec"]
    [main] = pod["containers"]
    assert main["command"] == ["python", "-m", "atoll_runtime.evaluator"]
    assert (main["image"], main["resources"]["limits"]) == ("mine:2", {"cpu": "4"})
    assert (pod["nodeSelector"], pod["tolerations"][-1]["key"]) == ({"pool": "cpu"}, "spare")
    assert {volume["name"] for volume in pod["volumes"]} == {"run", "tls", "tmp"}
    environment = {item["name"]: item["value"] for item in main["env"]}
    assert (environment["JAX_PLATFORMS"], environment["X"]) == ("cpu", "1")
    contract = parse_evaluation(environment["ATOLL_EVALUATION"])
    assert (contract.split, contract.tokens, contract.sequence_length) == ("train", 4096, 256)
    assert contract.status_port == 7401
    plain = evaluated_run({"tokens": 4096}).plan()
    assert plain.apply_evaluator[1]["spec"]["template"]["spec"]["containers"][0]["image"] == "runtime:1"
    assert plain.apply == evaluated_run().change(evaluation=None).plan().apply
    assert "evaluation" not in json.loads(plain.apply[0]["data"]["run.json"])


UNSCHEDULED = pod(NAME, unschedulable="0/3 nodes: cpu")
NO_POD = "no pod r-evaluator-0: see kubectl describe statefulset r-evaluator"
OF = "nats per token over 65536 tokens of split heldout"
STARTING, FALSE = ("False", "EvaluatorStarting"), "False"
CONDITIONS: list[tuple[dict[str, Any], tuple[str, str, str]]] = [
    ({}, (*STARTING, "")),
    ({"evaluator": REFUSED}, (*STARTING, "refused")),
    ({"evaluator": REFUSED, "evaluator_pods": ()}, (*STARTING, NO_POD)),
    ({"evaluator": REFUSED, "evaluator_pods": (UNSCHEDULED,)}, (*STARTING, "r-evaluator-0: 0/3 nodes: cpu")),
    ({"evaluator": reports(RESULT).missed(UNAVAILABLE, "refused")}, (FALSE, UNAVAILABLE, "refused")),
    ({"evaluator": UNHEARD.missed("EvaluatorCertificateInvalid", "another's")},
     (FALSE, "EvaluatorCertificateInvalid", "another's")),
    ({"evaluator": REFUSED, "evaluator_pods": (CRASHING,)},
     (FALSE, "EvaluatorFailed", "r-evaluator-0 ended: DataInvalid: splits: 'heldout' is missing")),
    ({"evaluator": reports(message="waits")}, (FALSE, "NoResult", "waits")),
    ({"evaluator": reports(RESULT, error="step 60: checksum")}, (FALSE, "EvaluationFailed", "step 60: checksum")),
    ({"evaluator": reports(RESULT.model_copy(update={"loss": None}))},
     (FALSE, "LossNotFinite", f"global step 50: not finite {OF}")),
    ({"evaluator": reports(RESULT, "Evaluating"), "evaluator_pods": (pod(NAME, ready=True, **ENDED),)},
     ("True", "Evaluated", f"global step 50: 3.2500 {OF}")),
]  # fmt: skip


@pytest.mark.parametrize(("observed", "expected"), CONDITIONS, ids=[row[1][1] for row in CONDITIONS])
def test_condition_of_a_run_that_trains(observed: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert evaluated_run(**observed).condition(EVALUATED) == expected


def test_problem_creates_one_event_and_leaves_the_run_as_it_is() -> None:
    broken = evaluated_run(evaluator_pods=(CRASHING,)).syncer().plan()
    fine = evaluated_run(evaluator=reports(RESULT)).syncer().plan()
    assert [(notice.type, notice.reason) for notice in broken.notices] == [("Warning", "EvaluatorFailed")]
    assert not fine.notices
    for name in RUN_CONDITIONS:
        assert find(broken.status.conditions, name) == find(fine.status.conditions, name)
    assert broken.status.message == fine.status.message


def test_result_stays_in_the_status_while_the_evaluator_is_silent_or_not_polled_yet() -> None:
    scene = evaluated_run(evaluator=reports(RESULT, evaluated=3, skipped=2))
    scene.step()
    first = scene.step().status
    assert first.evaluation == EvaluationStatus(**RESULT.model_dump(), evaluated=3, skipped=2)
    assert scene.see(evaluator=UNHEARD).plan(60).status == first, "a new operator"
    silent = scene.see(evaluator=REFUSED).plan(61).status
    assert (silent.evaluation, condition(silent, EVALUATED)[1]) == (first.evaluation, "EvaluatorStarting")


def test_suspended_run_has_no_evaluator_and_a_resumed_one_has_it_again() -> None:
    scene = evaluated_run(evaluator=reports(RESULT)).change(suspend=True)
    plan = scene.step()
    assert (wanted(plan), plan.poll_evaluator, plan.delete) == (0, False, ())
    assert condition(plan.status, EVALUATED)[:2] == ("False", "Suspended")
    assert plan.status.evaluation is not None
    assert wanted(scene.change(suspend=False).plan(1)) == 1


def test_evaluator_of_a_failed_run_is_deleted() -> None:
    failed = evaluated_run().syncer("Failed")
    assert condition(failed.step().status, EVALUATED)[:2] == ("False", "RunFailed")
    assert deleted(failed.plan()) == {("Service", "r-evaluator"), ("StatefulSet", "r-evaluator")}


def test_run_completes_at_once_and_its_evaluator_stays_until_the_final_checkpoint_is_evaluated() -> None:
    scene = complete(evaluator=reports(RESULT))
    assert scene.status.phase == "Complete"
    waiting = scene.plan(10)
    assert condition(waiting.status, EVALUATED)[:2] == ("False", "EvaluatesFinal")
    assert (wanted(waiting), waiting.poll_evaluator, waiting.wake) == (1, True, NOW + 600)
    assert {name for _, name in deleted(waiting)} == {"r-syncer"}
    done = scene.see(evaluator=reports(FINAL)).step(20)
    assert (wanted(done), done.poll_evaluator, done.wake) == (None, False, None)
    assert {name for _, name in deleted(done)} == {"r-syncer", "r-evaluator"}
    assert condition(done.status, EVALUATED)[:2] == ("True", "Evaluated")
    assert done.status.evaluation is not None and done.status.evaluation.loss == 2.5
    later = scene.unknown().see(evaluator=UNHEARD).plan(9e3)
    assert later.status == done.status, "another operator, which never heard of the evaluator"


def test_wait_for_the_final_result_has_a_limit_and_says_why_there_is_none() -> None:
    scene = complete({"finalSeconds": 60}, evaluator=reports(RESULT))
    scene.see(evaluator=REFUSED, evaluator_pods=(CRASHING,))
    assert wanted(scene.plan(59)) == 1
    plan = scene.step(60)
    assert (wanted(plan), plan.poll_evaluator, plan.wake) == (None, False, None)
    status, reason, message = condition(plan.status, EVALUATED)
    assert (status, reason) == ("False", "FinalNotEvaluated")
    assert message.startswith("the final checkpoint, of global step 100, is not evaluated after 60 s")
    assert "'heldout' is missing" in message
    assert [notice.reason for notice in plan.notices] == ["FinalNotEvaluated"]
    scene.see(evaluator=UNHEARD, evaluator_pods=())
    assert scene.plan(70).status == plan.status, "the reason outlives the pod"
    assert complete().change(ttlSecondsAfterFinished=5).plan(5).delete_run, "that waits for no evaluator"
