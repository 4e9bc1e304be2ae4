"""Another operator under runs that exist: it restarts nothing, and what it tells older images they can read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import TWO_HOSTS
from pydantic import BaseModel

from atoll_operator.api.learnerunit import LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import find
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.template_hash import outdated
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.objects import RunObserved, contract, syncer_digest
from atoll_operator.plan.run.plan import plan_run
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_runtime.contract import EXIT_VERSION, VersionMismatch, brief, parse_run

NOW = 1_700_000_000.0
SPEC: dict[str, Any] = {
    "model": {"preset": "1m"},
    "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
    "target": {"globalSteps": 100},
    "checkpoint": {"uri": "gs://bucket/run"},
    "evaluation": {},
    "pools": [{"name": "a", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 2}],
}
OLD: dict[str, Any] = {"image": "runtime:1", "environment": {"A": "1"}, "pull_policy": "IfNotPresent"}
NEW: dict[str, Any] = {"image": "runtime:2", "environment": {"A": "2", "B": "3"}, "pull_policy": "Always"}


def make_run(
    operator: dict[str, Any], status: TrainingRunStatus | None = None, **changes: Any
) -> RunObserved:
    """A run as an operator with these defaults sees it."""
    spec = TrainingRunSpec.model_validate(SPEC | changes.pop("spec", {}))
    status = TrainingRunStatus() if status is None else status
    settings = pod_settings("r", spec, status.runtime, **operator)
    values: dict[str, Any] = {"name": "r", "namespace": "ns", "uid": "u", "generation": 1, "units": {}}
    return RunObserved(spec=spec, status=status, settings=settings, **(values | changes))


def without_pull_policy(body: Any) -> Any:
    """It is of the node, not of the run; a template that differs by it alone replaces no pod."""
    return json.loads(json.dumps(body).replace('"Always"', '"IfNotPresent"'))


def test_an_operator_with_other_defaults_leaves_a_run_as_it_is_once_its_status_names_an_image() -> None:
    first = plan_run(make_run(OLD), NOW)
    second = plan_run(make_run(NEW, first.status), NOW + 1)
    assert first.status.runtime == RuntimeStatus(image="runtime:1", environment={"A": "1"})
    assert second.status.runtime == first.status.runtime
    assert without_pull_policy([second.apply, second.units]) == without_pull_policy(
        [first.apply, first.units]
    )


def test_a_run_that_begins_has_the_image_and_variables_of_its_operator() -> None:
    plan = plan_run(make_run(NEW), NOW)
    syncer = next(
        body for body in plan.apply if body["metadata"]["name"] == "r-syncer" and "template" in body["spec"]
    )
    main = syncer["spec"]["template"]["spec"]["containers"][0]
    assert main["image"] == "runtime:2"
    assert {"name": "B", "value": "3"} in main["env"]
    assert {unit["spec"]["image"] for unit in plan.units} == {"runtime:2"}


@pytest.mark.parametrize(
    ("held", "asked", "expected"),
    [
        pytest.param(None, None, ("runtime:2", "2"), id="begins"),
        pytest.param(None, "own", ("own", "2"), id="begins-with-its-own"),
        pytest.param(("runtime:1", ""), None, ("runtime:1", "1"), id="is-kept"),
        pytest.param(("own", "own"), "own", ("own", "1"), id="its-own-is-kept"),
        pytest.param(("runtime:1", ""), "own", ("own", "2"), id="is-named"),
        pytest.param(("own", "own"), None, ("runtime:2", "2"), id="is-no-longer-named"),
        pytest.param(("runtime:1", ""), "runtime:1", ("runtime:1", "1"), id="the-same-is-named"),
        pytest.param(("runtime:2", "runtime:2"), None, ("runtime:2", "1"), id="the-default-was-named"),
    ],
)  # fmt: skip
def test_image_and_variables_change_together_and_only_by_the_user(held, asked, expected) -> None:
    spec = TrainingRunSpec.model_validate(SPEC | {"image": asked})
    status = held and RuntimeStatus(image=held[0], asked=held[1], environment={"A": "1"})
    found = pod_settings("r", spec, status, **NEW)
    assert (found.image, found.environment["A"]) == expected


def test_what_a_pod_is_told_names_nothing_that_is_at_its_default() -> None:
    def spelt(section: BaseModel, told: Any) -> None:
        for name, field in type(section).model_fields.items():
            value, key = getattr(section, name), field.alias or name
            if not field.is_required() and value == field.get_default(call_default_factory=True):
                assert key not in told, f"{key} is at its default"
            elif isinstance(value, BaseModel):
                spelt(value, told[key])

    run = contract(make_run(OLD, spec={"quorum": {"min": 2}, "inner": {"zLoss": 0.5}}))
    told = json.loads(brief(run))
    spelt(run, told)
    assert (told["inner"], told["quorum"]) == ({"zLoss": 0.5}, {"min": 2})
    assert parse_run(brief(run)) == run


def test_a_field_that_an_image_does_not_know_is_named_with_what_mends_it() -> None:
    told = json.loads(brief(contract(make_run(OLD))))
    told["inner"] = {"sharpness": 2}
    with pytest.raises(VersionMismatch, match=r"inner\.sharpness: Extra inputs .* set spec\.image"):
        parse_run(json.dumps(told))


def test_the_digest_of_a_run_is_that_of_every_version_before() -> None:
    """Whoever changes it, or a default of what it holds, restarts the syncers of every run at the next upgrade."""
    stored = {
        "quorum": {"min": 1, "grace": {"fraction": 0.8, "maxSteps": 1.0}},
        "checkpoint": {"uri": "gs://bucket/run", "intervalSteps": 100, "keep": 3},
        "syncer": {"tape": "Decisions", "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}},
    }
    assert syncer_digest(make_run(OLD, spec=stored)) == "9ef2a7d06a478ba1"
    bare = {"syncer": {"resources": stored["syncer"]["resources"]}}
    assert syncer_digest(make_run(OLD, spec=bare)) == "9ef2a7d06a478ba1"


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        pytest.param({"image": "runtime:3"}, True, id="image"),
        pytest.param({"quorum": {"min": 2}}, True, id="quorum"),
        pytest.param({"podTemplate": {"env": [{"name": "X", "value": "1"}]}}, True, id="variable"),
        pytest.param({"syncer": {"nodeSelector": {"a": "b"}}}, True, id="node-selector"),
        pytest.param({"serviceAccountName": "other"}, True, id="service-account"),
        pytest.param({"syncer": {"storage": "9Gi", "shards": 3}}, False, id="volume-and-number"),
        pytest.param({"units": 1, "recovery": {"maxRestarts": 3}}, False, id="units"),
    ],
)
def test_syncers_are_made_anew_for_what_their_pods_are_made_of(spec, changes) -> None:
    assert (syncer_digest(make_run(OLD, spec=spec)) != syncer_digest(make_run(OLD))) is changes


def pod(number: int, contract: str = "new", **changes: Any) -> PodView:
    name = f"r-syncer-{number}"
    return PodView(
        name=name,
        uid=f"{name}-{contract}",
        contract=contract,
        **({"phase": "Running", "ready": True} | changes),
    )


@pytest.mark.parametrize(
    ("pods", "due"),
    [
        pytest.param([pod(0), pod(1), pod(2)], [], id="none"),
        pytest.param([pod(2, "old"), pod(10, "old"), pod(1)], ["r-syncer-10"], id="the-last-first"),
        pytest.param([pod(0, "old"), pod(1, "old"), pod(2, ready=False)], [], id="the-new-one-is-not-ready"),
        pytest.param([pod(0, "old"), pod(1, "old")], [], id="one-is-missing"),
        pytest.param([pod(0, "old"), pod(1), pod(2, deletion_time=NOW)], [], id="one-is-on-its-way-out"),
        pytest.param(
            [pod(0, "old"), pod(1, "old", ready=False), pod(2, "old", ready=False)],
            ["r-syncer-1", "r-syncer-2"],
            id="those-with-nothing-to-lose",
        ),
        pytest.param([pod(0, "old", deletion_time=NOW), pod(1), pod(2)], [], id="told-once"),
        pytest.param([pod(0), pod(1), pod(2, "", ready=False)], [], id="somebody-elses"),
    ],
)
def test_whose_turn_it_is(pods, due) -> None:
    assert [each.name for each in outdated(pods, "new", 3)] == due
    assert outdated(pods, "new", 0) == ()


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_from_any_state_all_pods_come_to_be_new_and_at_most_one_that_is_ready_goes_at_a_time(
    states, random
) -> None:
    pods = {n: pod(n, "new" if new else "old", ready=ready) for n, (new, ready) in enumerate(states)}
    for _ in range(6 * len(pods)):
        due = outdated(tuple(pods.values()), "new", len(states))
        if any(each.ready for each in due):
            assert len(due) == 1 and all(each.ready for each in pods.values()) and len(pods) == len(states)
        for each in due:
            number = int(each.name.rpartition("-")[2])
            pods[number] = pod(number, ready=False)
        waiting = [number for number, each in pods.items() if not each.ready and each.contract == "new"]
        if waiting:
            number = random.choice(waiting)
            pods[number] = replace(pods[number], ready=True)
    assert all(each.contract == "new" and each.ready for each in pods.values())


def test_a_run_renews_its_pods_for_a_new_image_and_none_while_it_is_suspended() -> None:
    old = plan_run(make_run(OLD), NOW)
    syncer, evaluator = (
        next(
            body
            for body in (*old.apply, *old.evaluator)
            if body["kind"] == "StatefulSet" and body["metadata"]["name"] == name
        )
        for name in ("r-syncer", "r-evaluator")
    )
    digests = [
        body["spec"]["template"]["metadata"]["annotations"]["atoll.dev/contract"]
        for body in (syncer, evaluator)
    ]
    running = {
        "syncer_pods": (pod(0, digests[0]),),
        "evaluator_pods": (replace(pod(0, digests[1]), name="r-evaluator-0"),),
    }
    assert plan_run(make_run(NEW, old.status, **running), NOW).renew == ()
    named = plan_run(make_run(NEW, old.status, spec={"image": "runtime:2"}, **running), NOW)
    assert [(each.kind, each.name) for each in named.renew] == [
        ("Pod", "r-syncer-0"),
        ("Pod", "r-evaluator-0"),
    ]
    assert named.status.runtime == RuntimeStatus(
        image="runtime:2", asked="runtime:2", environment={"A": "2", "B": "3"}
    )
    stopped = make_run(NEW, old.status, spec={"image": "runtime:2", "suspend": True}, units={}, **running)
    done = old.status.model_copy(update={"phase": "Suspended"})
    assert plan_run(replace(stopped, status=done), NOW).apply[2]["spec"]["replicas"] == 0
    assert plan_run(replace(stopped, status=done), NOW).renew == ()


def test_a_unit_of_another_version_is_tried_for_ever_and_charged_nothing() -> None:
    message = "VersionMismatch: the unit's image speaks protocol 3, the syncer's 4: give both the same image"
    ended = {
        "phase": "Running", "exit_code": EXIT_VERSION, "exit_message": message, "ended_incarnation": 40,
        "finished_at": NOW - 1, "started_at": NOW - 60, "gang": 40, "incarnation": 40, "node": "n",
    }  # fmt: skip
    pods = tuple(PodView(name=f"r-two-0-40-{host}", host=host, unit="r-two-0", **ended) for host in (0, 1))
    past = tuple(Restart(time=format_time(NOW - 600), reason="VersionMismatch") for _ in range(39))
    unit = UnitObserved(
        name="r-two-0", namespace="ns", uid="u", generation=1, spec=TWO_HOSTS, pods=pods,
        status=LearnerUnitStatus(phase="Joining", incarnation=40, gang=40, placed_gang=40, restarts=past),
        orders=Orders(
            stop="", finishing=False, recovery=RecoverySpec(max_restarts=1),
            settings=PodSettings(run="r", image="i", pull_policy="Always", environment={}),
        ),
    )  # fmt: skip
    status = plan_unit(unit, NOW).status
    assert (status.phase, status.incarnation) == ("Healing", 41)
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.last_failure.message) == tuple(message.split(": ", 1))


def test_a_syncer_that_cannot_read_its_contract_does_not_fail_the_run_which_says_why() -> None:
    message = "VersionMismatch: run.json: inner.sharpness: Extra inputs are not permitted"
    dead = pod(0, ready=False, exit_code=EXIT_VERSION, exit_message=message, waiting="CrashLoopBackOff")
    plan = plan_run(make_run(OLD, syncer_pods=(dead,)), NOW)
    ready = find(plan.status.conditions, "Ready")
    assert plan.status.phase == "Starting"
    assert (
        ready is not None and "r-syncer-0 ended: VersionMismatch: run.json: inner.sharpness" in ready.message
    )
