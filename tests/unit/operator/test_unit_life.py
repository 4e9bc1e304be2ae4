"""A unit from its creation to its end: incarnations without failures, budget, status, queue; and all at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import TWO_HOSTS
from scene import Scene, learning
from scene_cluster import NOW

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.learnerunit import Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import format_time, parse_time
from atoll_operator.plan.pods import names
from atoll_operator.plan.pods.view import view
from atoll_operator.plan.unit.incarnation import budget_of, jitter
from atoll_runtime import contract
from atoll_runtime.learner.incarnation import MEMORY_FILE

QUEUED = {"queue_name": "team"}


def test_a_changed_spec_makes_the_next_incarnation_and_sound_pods_have_time_to_end() -> None:
    scene = learning()
    scene.generation, scene.spec = 2, scene.spec.model_copy(update={"batch": 16})
    scene.once()
    assert (scene.numbers, scene.status.restart_count) == ((2, 2), 0)
    assert {removal.grace_seconds for removal in scene.look().remove} == {60}


@pytest.mark.parametrize("stop", ["Suspended", "Finished", "RunNotFound"])
@pytest.mark.parametrize("healing", [False, True])
def test_a_unit_whose_pods_were_taken_away_comes_back_without_a_failure(stop: str, healing: bool) -> None:
    scene = learning()
    if healing:
        scene.fail(1).once()
    before = scene.status
    scene.set(stop=stop).rest()
    assert scene.names() == []
    assert scene.condition("Scheduled")[1] == stop
    assert (scene.status.heal_start_time, scene.status.lost is not None) == (None, healing)
    charged = scene.status.lost
    scene.rest()
    assert scene.status.lost == charged, "once"
    scene.set(stop="").once()
    assert scene.numbers == (before.incarnation + 1, before.incarnation + 1)
    assert (scene.status.restarts, scene.status.heal_start_time) == (before.restarts, None)


def test_a_suspension_does_not_wait_for_the_pod_of_a_lost_node() -> None:
    scene = learning().silence(1).set(stop="Suspended").once().once()
    assert scene.condition("Draining")[0] == "True" and scene.look().wake == scene.now + 3
    scene.wait(4).once()
    assert scene.condition("Draining")[0] == "False"


def test_a_unit_that_cannot_be_made_says_why_and_does_nothing() -> None:
    scene = Scene()
    scene.spec = scene.spec.model_copy(update={"topology": "3x3"})
    assert not scene.turn() or not scene.turn()
    assert scene.condition("Scheduled")[1] == "SpecInvalid" and "topology" in scene.condition("Scheduled")[2]
    assert scene.names() == []


def test_a_stuck_pod_is_removed_by_force_only_where_that_is_wanted() -> None:
    for force in (False, True):
        scene = learning(recovery={"force_delete": force}).silence(1).wait(4).rest().wait(40).rest()
        assert ("1-1" in scene.names()) is not force
    scene = learning(recovery={"force_delete": True}, **QUEUED).delete(1, grace=0).once().wait(40)
    finalizers = {each.name: each.finalizer for each in scene.look().remove}
    assert finalizers["r-two-0-1-1"] == "kueue.x-k8s.io/managed", "it is released from its queue"


def test_an_exhausted_budget_is_final_until_it_grows_or_the_spec_changes() -> None:
    scene = learning(recovery={"max_restarts": 0}).fail(1, 64).once()
    assert scene.status.phase == "Failed" and "Delete this LearnerUnit" in scene.status.message
    scene.rest()
    assert scene.names() == ["1-1"], "what failed can be looked at"
    scene.wait(1e6)
    assert not scene.turn()
    changed, scene.generation = scene.generation, 2
    assert scene.look().status.restarts == ()
    scene.generation, scene.recovery = changed, RecoverySpec(max_restarts=1)
    tried = scene.look().status
    assert (tried.phase, tried.incarnation, tried.restart_count) == ("Pending", 2, 1)


def restarts(count: int, why: str = "AppError") -> tuple[Restart, ...]:
    return tuple(Restart(time=format_time(NOW - count + number), reason=why) for number in range(count))


@given(count=st.integers(1, 40), share=st.floats(0, 1, exclude_max=True))
def test_a_back_off_doubles_has_a_bound_and_a_jitter_of_a_fifth(count: int, share: float) -> None:
    allowance = budget_of(restarts(count), RecoverySpec(max_restarts=1000), NOW, share)
    wait = allowance.not_before - parse_time(restarts(count)[-1].time)
    middle = min(5.0 * 2 ** (count - 1), 300.0)
    assert 0.8 * middle - 1e-3 <= wait <= 1.2 * middle + 1e-3 and not allowance.exhausted


def test_a_unit_of_another_version_is_tried_for_ever_and_charged_nothing() -> None:
    scene = learning(recovery={"max_restarts": 1})
    for _ in range(39):
        scene.note_restart(600, "VersionMismatch")
    scene.crash(1, contract.EXIT_VERSION, "VersionMismatch: give both the same image").once()
    assert (scene.status.phase, scene.reason, scene.numbers[0]) == ("Healing", "VersionMismatch", 2)


@pytest.mark.parametrize(
    ("count", "why", "allowed", "later", "exhausted"),
    [
        (3, "AppError", 3, 0, True), (3, "AppError", 4, 0, False), (3, "AppError", 3, 3600, False),
        (0, "AdmissionRejected", 0, 0, True), (1, "AdmissionRejected", 1, 0, False),
        (2, "AdmissionRejected", 1, 0, True), (2, "AdmissionRejected", 2, 0, False),
    ],
)  # fmt: skip
def test_a_budget_counts_but_a_first_rejection(
    count: int, why: str, allowed: int, later: int, exhausted: bool
) -> None:
    found = budget_of(restarts(count, why), RecoverySpec(max_restarts=allowed), NOW + later, 0.5)
    assert found.exhausted is exhausted


@pytest.mark.parametrize("ahead", [120, 86_400])
def test_a_restart_that_a_wrong_clock_noted_stops_no_heal_and_does_not_count(ahead: int) -> None:
    late = [item.model_copy(update={"time": format_time(NOW + ahead)}) for item in restarts(3)]
    found = budget_of(late, RecoverySpec(), NOW, 0.5)
    assert (found.not_before, found.exhausted, len(found.recent)) == (NOW, False, 0)
    written = (*found.recent, Restart(time=format_time(NOW), reason="AppError"))
    for look in (NOW + 1, NOW + 9):
        assert budget_of(written, RecoverySpec(), look, 0.5).not_before == NOW + 5


def test_the_jitter_is_not_the_same_for_all_units() -> None:
    assert len({jitter(f"uid-{number}", 3) for number in range(50)}) > 40


LINK = contract.LinkReport(codec="bf16", period=1, up_gbps=2.1, down_gbps=1.9, rtt_seconds=0.08, load=0.4)
FIGURES = "2.1 Gbit/s up, 1.9 down, round trip 80 ms; transfers of every round take 40% of an interval"
TOLD = f"bf16, part in every round; {FIGURES}"


@pytest.mark.parametrize(
    ("link", "fixed", "condition"),
    [
        ({"load": 0}, {}, ("Unknown", "NotMeasured", "too little was sent yet to measure the link by")),
        ({}, {}, ("True", "Adequate", TOLD)),
        ({"reason": "fits"}, {}, ("True", "Adequate", f"{TOLD}: fits")),
        ({"codec": "int8"}, {}, ("True", "Narrowed", TOLD.replace("bf16", "int8"))),
        ({"period": 2.5}, {}, ("False", "LinkTooSlow", f"bf16, part in one of 2.5 rounds; {FIGURES}")),
        ({"period": 2.5}, {"period": 2}, ("False", "LinkTooSlow", None)),
        ({"period": 4}, {"period": 4}, ("True", "Adequate", None)),
        ({"advice": "set codec int4"}, {"codec": "bf16"}, ("False", "SettingTooWide", f"set codec int4; {TOLD}")),
        ({"advice": "set codec int4", "period": 3}, {}, ("False", "SettingTooWide", None)),
    ],
)  # fmt: skip
def test_a_unit_says_whether_its_link_carries_what_its_run_asks(
    link: Any, fixed: Any, condition: Any
) -> None:
    scene = Scene()
    assert scene.once().condition("LinkAdequate")[:2] == ("Unknown", "NotMeasured"), "from the first pass"
    scene.set(communication=contract.CommunicationSpec(**fixed)).place()
    scene.hear(link=LINK.model_copy(update=link))
    found = scene.condition("LinkAdequate")
    assert found == (*condition[:2], condition[2] or found[2])


CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []), ({"load": 0.5}, []), ({"codec": "int8"}, ["Normal Narrowed"]), ({"period": 3}, ["Warning LinkTooSlow"]),
    ({"advice": "set period 3"}, ["Warning SettingTooWide"]), ({}, ["Normal Adequate"]), ({"load": 0}, []),
]  # fmt: skip


def test_a_link_that_is_not_adequate_any_more_is_an_event_and_so_is_its_return() -> None:
    scene = learning()
    for change, told in CHANGES:
        scene.report = scene.report.model_copy(update={"link": LINK.model_copy(update=change)})
        assert [f"{each.type} {each.reason}" for each in scene.look().notices] == told, change
        assert scene.rest().plan.notices == (), "once"


def test_the_link_is_as_the_unit_told_last_also_after_it_has_gone() -> None:
    counts = {"busy_share": 0.6, "failures": 3}
    link = contract.LinkReport(up_gbps=1.23456, down_gbps=0.5, rtt_seconds=0.0420001, **counts)
    scene = learning().hear(step=95, link=link, refusals={"norm": 2})
    scene.once()
    shown = link.model_copy(update={"up_gbps": 1.23, "rtt_seconds": 0.042})
    assert (scene.status.link, scene.status.refusals) == (shown, {"norm": 2})
    scene.hear(hosts=0, link=contract.LinkReport())
    scene.once()
    assert scene.status.link == shown


def test_a_heal_ends_with_the_first_merge_and_says_what_it_cost() -> None:
    scene = learning().hear(step=95, step_seconds=0.5).fail(1)
    failed = scene.now
    scene.wait(1).place().make_room(0, 2, 3)
    assert scene.rest().status.last_heal is None, "merges of the old incarnation are none of it"
    assert scene.condition("PodsReady")[0] == "True" and scene.status.phase == "Healing"
    scene.now = failed + 14
    scene.report = contract.UnitReport(
        incarnation=2, hosts=4, state="Learning", step=1, loss=3.0, step_seconds=0.25, seeded_step=40,
        first_merge_time=failed + 12.5,
    )  # fmt: skip
    scene.once()
    heal, lost = scene.status.last_heal, scene.status.lost
    assert (heal.reason, heal.seconds, heal.chip_seconds, heal.steps) == ("AppError", 12.5, 200.0, 50)
    assert lost.by_reason["AppError"].steps == 50
    assert scene.condition("Seeded")[2] == "from the global checkpoint of step 40"
    assert (scene.status.phase, scene.status.merged_incarnation) == ("Learning", 2)
    scene.once()
    assert scene.status.last_heal.model_copy(update={"stages": heal.stages}) == heal


def test_pods_are_ready_when_all_containers_have_restarted_or_all_hosts_are_connected() -> None:
    scene = learning().crash(1).rest()
    assert scene.condition("Scheduled")[0] == "True"
    assert scene.condition("PodsReady") == ("False", "Restarting", "1 of 4 containers restarted in place")
    assert scene.status.phase == "Healing"
    scene.hear("Joining")
    assert scene.condition("PodsReady")[0] == "True"


def test_what_fails_again_before_a_merge_is_another_failure_and_one_heal() -> None:
    scene = learning().fail(1).once()
    began = scene.status.heal_start_time
    scene.wait(60).fail(2, None, reason="UnexpectedAdmissionError").once()
    assert (scene.status.heal_reason, scene.status.heal_start_time, scene.reason) == (
        "AppError", began, "AdmissionRejected",
    )  # fmt: skip
    scene = learning().crash(1).rest().wait(60).crash(1).once()
    failure = scene.status.last_failure
    assert failure is not None and parse_time(failure.time) == scene.now
    assert [notice.reason for notice in scene.plan.notices] == ["OSError", "RestartInPlace"]


def test_a_unit_that_is_given_up_is_charged_the_heal_that_came_to_nothing() -> None:
    scene = learning().fail(1).once().wait(30).set(recovery=RecoverySpec(max_restarts=1)).fail(2, 64)
    scene.once()
    assert scene.status.phase == "Failed" and scene.status.lost is not None
    assert scene.status.lost.by_reason["AppError"].seconds == 30.0


def test_an_image_that_cannot_be_pulled_is_a_condition_and_no_failure() -> None:
    scene = Scene().rest().bind(0, "red-0")
    for reason, told in (("ImagePullBackOff", "ImagePull"), ("ContainerCreating", "Placing")):
        waiting = {"waiting": {"reason": reason, "message": "not found"}}
        scene.pod(0)["status"]["containerStatuses"] = [{"name": "main", "state": waiting}]
        scene.rest()
        assert (scene.condition("Scheduled")[1], scene.status.incarnation) == (told, 1)


def test_a_unit_that_a_peer_may_have_seeded_says_what_it_was_told() -> None:
    scene = Scene(recovery={"seed": "Peer"}).place()
    scene.hear("Joining", seeded_step=40, seed_message="seeded from peer r-one-0")
    assert scene.condition("Seeded") == ("True", "Seeded", "at global step 40; seeded from peer r-one-0")


def test_the_ledger_covers_all_incarnations_and_is_final_when_the_run_is() -> None:
    scene = learning()
    scene.set(ledger=contract.LedgerReport(trained=80, merged=60, discarded={"Finished": 20}))
    scene.set(stop="Finished").rest()
    assert scene.status.ledger == LedgerStatus(fragments=4, trained=80, merged=60, discarded={"Finished": 20})
    assert scene.status.share_percent == 25.0, "of the tokens that were merged"
    scene.set(ledger=None)
    assert scene.rest().status.ledger is not None


def test_pods_read_their_incarnation_where_it_is_looked_for_and_keep_what_outlives_a_container() -> None:
    spec = Scene(TWO_HOSTS).place().pod(0)["spec"]
    assert spec["restartPolicy"] == "OnFailure"
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    volume = next(item for item in spec["volumes"] if "downwardAPI" in item)
    (file,) = volume["downwardAPI"]["items"]
    assert f"{mounts[volume['name']]}/{file['path']}" == contract.INCARNATION_FILE
    assert file["fieldRef"]["fieldPath"] == "metadata.annotations['atoll.dev/incarnation']"
    assert MEMORY_FILE.startswith(f"{mounts['tmp']}/")


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1.5", "", "٣"])
def test_a_number_that_is_none_of_ours_is_taken_for_none(text: str) -> None:
    labels = {"atoll.dev/placement": text, "atoll.dev/host": text}
    pod = view({"metadata": {"name": "p", "labels": labels, "annotations": {"atoll.dev/incarnation": text}}})
    assert (pod.placement, pod.host, pod.incarnation) == (0, 0, 0)


def test_of_several_containers_the_learners_own_counts_wherever_it_stands() -> None:
    ended = {"exitCode": 65, "message": "incarnation 1\nNonFiniteLoss: step 3\n"}
    main = {"name": "main", "state": {"terminated": ended}}
    proxy = {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    killed = {"name": "istio-proxy", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    for statuses in ([proxy, main], [main, proxy], [killed, main]):
        pod = view({"metadata": {"name": "p"}, "status": {"containerStatuses": statuses}})
        assert (pod.exit_code, pod.exit_message, pod.started_at) == (65, "NonFiniteLoss: step 3", None)
    alone = view({"metadata": {"name": "p"}, "status": {"containerStatuses": [killed]}})
    assert (alone.exit_code, alone.exit_reason) == (None, "")


@pytest.mark.parametrize(("sees_nodes", "lost", "seconds"), [(True, 4, 30), (True, 120, 120), (False, 4, 4)])
def test_kubernetes_deletes_pods_of_a_lost_node_as_we_do(sees_nodes: bool, lost: int, seconds: int) -> None:
    scene = Scene(sees_nodes=sees_nodes, recovery={"node_lost_seconds": lost}).place()
    for pod in scene.pods.values():
        tolerations = {item["key"]: item.get("tolerationSeconds") for item in pod["spec"]["tolerations"]}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            assert tolerations[key] == seconds


def test_a_unit_in_a_queue_says_so_and_no_deadline_runs() -> None:
    scene = Scene(recovery={"startup_seconds": 30}, **QUEUED).rest().wait(1e6).rest()
    status, reason, message = scene.condition("Scheduled")
    assert (status, reason, scene.status.restart_count, scene.plan.wake) == ("False", "Queued", 0, None)
    assert "kubectl describe workload r-two-0-1-" in message
    assert "kueue" in str(scene.pods) and "kueue" not in str(Scene().rest().pods), "no queue is none"
    scene.pod(0)["spec"]["schedulingGates"] = [{"name": "example.com/scan"}]
    scene.rest()
    assert scene.condition("Scheduled")[1] == "SchedulingGated" and "example.com/scan" in scene.status.message


def test_pods_and_groups_have_names_that_fit_and_a_group_one_that_a_later_unit_does_not_share() -> None:
    unit = names.unit_name("r" * (names.NAMES_LIMIT - 10), "p" * 10, 255)
    assert len(names.pod_name(unit, names.MAX_INCARNATION, 1535)) == 63, "as long as a host name may be"
    assert len(names.pod_group(unit, names.MAX_INCARNATION, "3fa9c0de")) <= 63
    assert names.pod_group("r-two-0", 1, "3fa9c0de") != names.pod_group("r-two-0", 1, "77aac0de")
