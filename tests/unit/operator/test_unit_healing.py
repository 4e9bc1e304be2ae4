"""docs/healing.md, row by row, and what the operator does about each verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scene import TWO_SLICES, Scene, learning

from atoll_operator.plan.nodes import IMPENDING_TERMINATION, OUT_OF_SERVICE
from atoll_operator.plan.unit.deadlines import RENEWAL_SECONDS, SUSPECT_ROOM, overdue
from atoll_operator.plan.unit.failure import Action
from atoll_operator.plan.unit.placement import RETURN_SECONDS
from atoll_operator.plan.unit.plan import observe
from atoll_runtime.contract import EXIT_FENCED, EXIT_TERMINAL, EXIT_VERSION, UnitReport

PAGE = Path(__file__).resolve().parents[3] / "docs/healing.md"
ACTIONS = dict(zip(("`Serving`", "`RestartProcess`", "`ReplacePod`", "`LeavePlace`"), Action, strict=True))
PREEMPTED, EVICTED = "PreemptionByScheduler", "EvictionByEvictionAPI"


def rows(title: str) -> list[tuple[str, ...]]:
    """The cells of the table in this section of the page."""
    lines = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [tuple(map(str.strip, cells)) for cells in table[2:]]


def restarted(host: int = 1) -> Scene:
    """After the failure of one pod: the incarnation is 2, the others were told, and nobody has restarted."""
    return learning().fail(host).rest()


def starting(host: int) -> Scene:
    scene = Scene().place()
    scene.pods[f"r-two-0-1-{host}"]["status"] |= {"phase": "Pending", "containerStatuses": []}
    return scene


CORDONED, OUT = {"unschedulable": True}, {"taints": [{"key": OUT_OF_SERVICE}]}
SLOTS: dict[str, list[Scene | tuple[Scene, int]]] = {
    "its pod runs, or waits for a node, an image or its container": [
        learning(), Scene().place(), starting(1), (Scene().rest(), 0),
    ],
    "its container ended for the current incarnation (exit status 66), or is of an older one": [
        (restarted().make_room(0), 0), learning().crash(1, of=7),
    ],
    "its pod ended with exit status 0 less than 15 s ago": [learning().fail(1, 0)],
    "its container ended with an error of the current incarnation": [
        learning().crash(1), learning().crash(1, 137, ""), learning().crash(1, EXIT_VERSION + 1, "OSError: no"),
    ],
    "its pod failed, or ended before the run did": [
        learning().fail(1), learning().fail(1, 137), learning().fail(1, 0).wait(60), learning(sees_nodes=False).fail(1),
    ],
    "its pod is being deleted": [learning().delete(1)],
    "its pod is missing, and the hosts have met": [learning().vanish(1)],
    "its pod is missing, and the hosts have not met": [Scene().place().vanish(1), (restarted().vanish(2), 2)],
    "its pod never ran the current incarnation and failed or is being deleted; the hosts have not met": [
        (restarted().fail(2), 2), (restarted().delete(2), 2),
    ],
    "its pod failed, and its node is cordoned": [learning().fail(1).change_node(1, spec=CORDONED)],
    "its pod failed, and its node pool lacks a host": [
        learning().fail(1).change_node(2, spec=CORDONED), (learning().change_node(1, spec=CORDONED).delete(2), 2),
    ],
    "its pod failed, and the unit is in a queue": [learning(queue_name="team").fail(1)],
    "its pod failed, and the other pods were made from another image or template": [learning().fail(1).new_image()],
    "its pod was evicted": [learning().delete(1, disruption=EVICTED), learning().fail(1, None, reason="Evicted")],
    "its pod was turned away by the kubelet, for the first time in the window": [
        learning().fail(1, None, reason="OutOfgoogle.com/tpu")
    ],
    "its pod was preempted": [learning().delete(1, disruption=PREEMPTED)],
    "its process ended with exit status 64, or as fenced": [
        learning().crash(1, EXIT_TERMINAL), learning().crash(1, EXIT_FENCED), learning().fail(1, EXIT_TERMINAL),
    ],
    "its container ended before the learner's own code ran": [learning().crash(1, of=0)],
    "its node is gone, out of service, or silent for `nodeLostSeconds` while no step is seen": [
        learning().delete_node(1), learning().change_node(1, spec=OUT), learning().silence(1, 4),
        learning().delete(1, disruption="DeletionByTaintManager"), learning().fail(1, None),
    ],
    "its pod runs, and its node is silent for less than that": [learning().silence(1)],
    "its container ended with an error, and the node of another host is silent": [learning().silence(2).crash(1)],
}  # fmt: skip
"""What is seen of host 1, or of another one, by the words of the page."""


@pytest.mark.parametrize("row", rows("Slots"), ids=lambda row: row[0])
def test_what_is_seen_of_a_host_has_the_verdict_that_the_page_says(row: tuple[str, ...]) -> None:
    seen, action, anew, charged = row
    assert SLOTS.keys() == {each[0] for each in rows("Slots")}
    for each in SLOTS[seen]:
        scene, host = each if isinstance(each, tuple) else (each, 1)
        slot = observe(scene.observe())[host]
        if "silent for less" in seen:
            assert slot.action is Action.LEAVE_PLACE, "it would not survive a restart"
        elif "another host" not in seen:
            assert slot.action is ACTIONS[action]
        assert (slot.cause is not None) is (anew == "yes"), slot
        check(scene, action, anew, charged)


def check(scene: Scene, action: str, anew: str, charged: str) -> None:
    """The plan is what a row says; only the incarnation is written first."""
    before, kept = scene.status, set(scene.pods)
    plan = scene.look()
    assert plan.advance is (anew == "yes"), plan.status
    assert plan.status.incarnation == before.incarnation + (anew == "yes")
    if plan.advance:
        assert (plan.create, plan.remove, plan.renew) == ((), (), ())
        assert (plan.status.placement == before.placement) is (action != "`LeavePlace`")
        assert plan.status.restarts[-1].in_place is (action != "`LeavePlace`")
        recovery = scene.recovery
        scene.set(recovery=recovery.model_copy(update={"max_restarts": 0}))
        assert (scene.look().status.phase == "Failed") is (charged == "yes")
        scene.set(recovery=recovery)
    scene.rest()
    if action in ("`Serving`", "`RestartProcess`"):
        assert kept <= set(scene.pods)


def without_host() -> Scene:
    return restarted().unschedulable(1).wait(RETURN_SECONDS)


def after_two(*ago: float, merged: bool) -> Scene:
    """After restarts in place so many seconds ago."""
    scene = learning()
    for incarnation, seconds in enumerate(ago, 2):
        update = {"merged_incarnation": incarnation} if merged else {}
        scene.note_restart(seconds, in_place=True, incarnation=incarnation, **update)
    for pod in scene.pods.values():
        pod["metadata"]["annotations"]["atoll.dev/incarnation"] = str(scene.status.incarnation)
    scene.crash(1)
    return scene


def moved() -> Scene:
    scene = learning().announce(1).once()
    for host in range(4):
        scene.fail(host, 0)
    return scene


IMPATIENT, NOT_IN_PLACE = {"startup_seconds": 600}, {"in_place": False}
SUSPECT = UnitReport(incarnation=1, hosts=4, state="Learning", suspect="8 refused")
UNITS: dict[str, list[Scene]] = {
    "no step ended for `hangSeconds`": [learning().wait(900)],
    "the syncer finds that its results are not to be trusted (`Suspect`)": [learning().set(report=SUSPECT)],
    "not all hosts are connected `startupSeconds` after the pods started": [
        Scene(recovery=IMPATIENT).place().wait(600)
    ],
    "not all hosts are connected `startupSeconds` after a restart": [
        learning(recovery=IMPATIENT).crash(1).rest().make_room(0, 2, 3).wait(600)
    ],
    "a pod or process of the last incarnation is still there 90 s after a restart": [
        restarted(1).make_room(0, 3).wait(RENEWAL_SECONDS)
    ],
    "a container has not started `startupSeconds` after it got its node, and others have": [starting(1).wait(1800)],
    "a replaced pod is unschedulable for 15 s": [without_host()],
    "a node is about to be taken away, and the pods have ended between two steps": [moved()],
    "a failure after two restarts on the same hosts without a merge": [after_two(1400, 700, merged=False)],
    "a failure after two restarts on the same hosts within 10 min": [
        after_two(300, 100, merged=True), after_two(900, 500, merged=True)
    ],
    "a failure, and `recovery.inPlace` is false": [
        learning(recovery=NOT_IN_PLACE).fail(1), learning(recovery=NOT_IN_PLACE).crash(1),
    ],
    "all pods of a slice failed on sound hosts": [
        learning().fail_all(0, 1, 2, 3), learning(TWO_SLICES).fail_all(2, 3),
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", rows("The whole unit"), ids=lambda row: row[0])
def test_what_is_seen_of_a_unit_has_the_action_that_the_page_says(row: tuple[str, ...]) -> None:
    seen, action, anew, charged = row
    assert UNITS.keys() == {each[0] for each in rows("The whole unit")}
    for scene in UNITS[seen]:
        check(scene, action, anew, charged)


def test_a_pod_in_the_place_of_a_failed_one_has_its_names_and_its_contract() -> None:
    scene = learning()
    first = scene.pod(2)
    again = scene.fail(2).rest().pod(2)
    assert again is not first and scene.status.restarts[-1].replaced == 1
    for field in ("hostname", "subdomain"):
        assert again["spec"][field] == first["spec"][field], "its peers know it by this name"
    assert again["spec"]["containers"] == first["spec"]["containers"]
    assert again["metadata"]["labels"] == first["metadata"]["labels"]


@pytest.mark.parametrize("hosts", [[0], [0, 1, 2, 3]])
def test_replaced_pods_go_to_their_pool_at_once_and_a_leader_holds_it_again(hosts: list[int]) -> None:
    scene = learning().fail_all(*hosts).rest()
    for host in hosts:
        assert scene.pod(host)["spec"]["nodeSelector"]["cloud.google.com/gke-nodepool"] == "red"
        assert "atoll.dev/holds" in scene.pod(host)["metadata"]["labels"]


def test_a_pod_that_is_being_deleted_keeps_its_host_until_it_has_ended() -> None:
    scene = learning().delete(1, grace=60).once()
    plan = scene.look()
    assert [(each.name, each.grace_seconds) for each in plan.remove] == [("r-two-0-1-1", 1)], "it is hurried"
    assert (plan.create, len(plan.renew)) == ((), 3)
    scene.fail(1, 143)
    assert [make()["metadata"]["name"] for make in scene.look().create] == ["r-two-0-2-1"]


def test_absence_is_confirmed_before_it_costs_an_incarnation_and_what_was_seen_is_not() -> None:
    assert learning().vanish(1).look().needs_fresh_list
    assert not learning().fail(1).look().needs_fresh_list
    assert without_host().look().needs_fresh_list
    assert not moved().look().needs_fresh_list
    assert moved().vanish(1).look().needs_fresh_list


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(restarted().bind(1, "red-1").start(1).fail(1), id="the-replaced-one"),
        pytest.param(restarted().crash(2), id="a-process-of-this-incarnation"),
        pytest.param(restarted().make_room(2).delete(2), id="one-that-may-run-as-this-incarnation"),
        pytest.param(restarted().hear("Joining").fail(2), id="after-the-hosts-met"),
        pytest.param(restarted().delete(2, disruption=EVICTED), id="evicted"),
    ],
)
def test_a_new_failure_during_a_restart_costs_another_incarnation(scene: Scene) -> None:
    assert scene.look().status.last_failure != scene.status.last_failure or scene.plan.wake is not None
    assert scene.look(after=60).status.incarnation == 3


def test_hosts_that_are_connected_are_not_ready_while_one_pod_is_missing() -> None:
    scene = restarted(1).vanish(1).hear("Joining", hosts=3)
    assert (scene.condition("PodsReady")[0], scene.names()[-1]) == ("False", "2-1")


@pytest.mark.parametrize(
    ("ago", "merged", "stays"),
    [((700,), False, True), ((1400, 700), True, True), ((1200, 500), True, True), ((300, 100), True, False)],
)  # fmt: skip
def test_restarts_that_helped_or_are_old_do_not_count(ago: Any, merged: bool, stays: bool) -> None:
    assert after_two(*ago, merged=merged).look().status.restarts[-1].in_place is stays


def test_the_pod_that_ended_first_is_the_failure() -> None:
    scene = learning().delete(0)
    for host, code, seconds in ((1, 143, 3), (2, 137, 1), (3, 1, 0)):
        scene.fail(host, code).wait(seconds)
    failure = scene.look().status.last_failure
    assert failure is not None and (failure.reason, failure.pod) == ("AppError", "r-two-0-1-2")


@pytest.mark.parametrize(
    ("how", "reason", "words"),
    [
        ({"reason": "Preempting"}, "Preempted", "Preempting"),
        ({"reason": "NodeShutdown"}, "HostMaintenance", "NodeShutdown"),
        ({"reason": "TaintToleration"}, "AdmissionRejected", "TaintToleration"),
        ({}, "NodeLost", "without an exit status"),
        ({"exit_code": 139}, "AppError", "SIGSEGV"),
        ({"exit_code": 160}, "AppError", "signal 32"),
        ({"exit_code": 255}, "AppError", "exit status 255"),
    ],
)  # fmt: skip
def test_a_pod_says_who_ended_it(how: dict[str, Any], reason: str, words: str) -> None:
    scene = learning().fail(1, **{"exit_code": None, **how})
    failure = scene.look().status.last_failure
    assert failure is not None and (failure.reason, words in failure.message) == (reason, True)


def test_the_announced_shutdown_of_a_spot_host_is_maintenance() -> None:
    spot, announced = {"cloud.google.com/gke-spot": "true"}, {"taints": [{"key": IMPENDING_TERMINATION}]}
    scene = learning().change_node(1, labels=spot, spec=announced)
    assert scene.fail(1, None, reason="Terminated").once().reason == "HostMaintenance"


def test_a_unit_is_lost_when_its_node_is_silent_for_as_long_as_the_run_says_and_no_step_is_seen() -> None:
    scene = learning().silence(1, 2).hear(step=91)
    assert not scene.look(after=10).advance
    wake = scene.plan.wake
    assert wake == scene.now + 30
    assert scene.look(after=30).advance
    scene = learning(recovery={"node_lost_seconds": 120}).silence(1).set(report=None)
    assert not scene.look(after=119).advance and scene.plan.wake == scene.now + 120
    assert scene.look(after=120).advance


def test_a_unit_whose_node_comes_back_during_the_back_off_stays_and_counts_no_heal() -> None:
    scene = learning().note_restart().silence(1, 4).once()
    assert (scene.condition("Healing")[1], scene.status.incarnation) == ("BackOff", 1)
    scene.change_node(1).rest()
    assert (scene.status.phase, scene.status.last_heal, scene.status.incarnation) == ("Learning", None, 1)


def test_a_hang_is_judged_by_a_later_answer_and_the_first_step_has_the_time_of_a_start() -> None:
    scene = Scene().place().hear("Joining", step=0, loss=None)
    assert not scene.look(after=1799).advance
    assert scene.look(after=1800).advance
    assert learning(recovery={"hang_seconds": 0}).look(after=1e6).advance is False
    scene = learning()
    assert not scene.set(heard=scene.now + 9).look(after=3600).advance
    assert scene.plan.wake == scene.now + 3602
    assert scene.set(heard=scene.now + 3600).look(after=3600).advance
    assert not learning().set(answering_since=None).look(after=1e6).advance


def test_containers_that_nowhere_start_are_a_condition_and_no_failure() -> None:
    scene = Scene().rest().bind(0, "red-0").rest()
    for host in (1, 2, 3):
        scene.bind(host, f"red-{host}")
    scene.wait(1800).rest()
    assert (scene.status.incarnation, scene.condition("PodsReady")[1]) == (1, "ContainerCreating")


@pytest.mark.parametrize("mark", ["taint", "label"])
def test_a_unit_leaves_a_host_that_is_about_to_go_between_two_steps(mark: str) -> None:
    scene = learning()
    if mark == "taint":
        scene.announce(1)
    else:
        scene.change_node(1, labels={"cloud.google.com/active-node-maintenance": "ONGOING"})
    scene.once()
    assert scene.condition("Draining")[:2] == ("True", "HostMaintenance")
    assert [removal.grace_seconds for removal in scene.look().remove] == [60] * 4
    for host in range(4):
        scene.delete(host, grace=60)
    waits = scene.look()
    assert (waits.advance, waits.create, waits.wake) == (False, (), scene.now + 60)
    scene.set(generation=2)
    assert not scene.look(after=59).advance, "also if its spec changes"
    scene.set(generation=1)
    assert scene.look(after=60).status.incarnation == 2, "a drain that does not end is over after its time"


@pytest.mark.parametrize("last", ["HostMaintenance", "AppError"])
def test_a_unit_in_its_back_off_leaves_a_host_at_once_unless_it_has_just_moved(last: str) -> None:
    scene = learning().note_restart(1, last).announce(1)
    assert scene.look().advance is (last == "AppError")
    if last == "HostMaintenance":
        assert scene.plan.wake is not None and scene.now < scene.plan.wake <= scene.now + 5
        return
    scene.once()
    for host in range(4):
        scene.fail(host, 143)
    scene.once()
    assert "the unit comes back at" in scene.status.message and not scene.look().advance
    assert scene.look(after=6).status.incarnation == 2


@pytest.mark.parametrize("disruption", ["", EVICTED])
def test_a_pod_that_the_platform_took_first_is_part_of_the_maintenance(disruption: str) -> None:
    scene = learning().announce(1).delete(1, disruption=disruption).once()
    assert (scene.reason, scene.numbers) == ("HostMaintenance", (2, 2))
    assert scene.condition("Draining")[0] == "False"


@pytest.mark.parametrize("value", ["0", "2", "", "x"])
def test_a_request_for_another_incarnation_does_nothing(value: str) -> None:
    scene = learning().set(annotations={"atoll.dev/heal": value, "atoll.dev/drain": value})
    assert not scene.turn()


def test_a_run_that_ends_heals_and_moves_and_removes_no_pod() -> None:
    scene = learning().set(finishing=True)
    scene.announce(0).fail(1).vanish(2)
    plan = scene.look(after=60)
    assert (plan.advance, plan.create, plan.remove) == (False, (), ())
    assert not learning().set(finishing=True).look(after=600).advance, "its units have no more steps to make"
    scene = learning().fail(1, 0)
    assert scene.look().wake == scene.now + 15, "the zero exit of a pod is looked at again in time"


def test_a_suspect_unit_of_thousands_of_hosts_names_its_node_pools_first() -> None:
    unit = learning().set(report=SUSPECT).observe()
    pods = [replace(unit.pods[0], node=f"gke-h{n:04}", pool=f"gke-p{n // 36:02}") for n in range(2304)]
    cause, _ = overdue(unit, pods)
    assert cause is not None and cause.message.startswith(
        "8 refused; it ran on 2,304 hosts (36 in node pool "
    )
    assert cause.message.count("36 in node pool gke-p") == 64 and cause.message.count("gke-h") > 100
    assert len(cause.message) == SUSPECT_ROOM
