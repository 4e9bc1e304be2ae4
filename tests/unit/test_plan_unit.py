"""The plan of one unit, by tables and by a simulated world in which anything fails at any time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objects import TWO_HOSTS as SPEC

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import document, find, is_true, state, transition
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.removal import DRAIN_SECONDS, Removal
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.remedy import Renewal
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_operator.plan.unit.unitplan import UnitPlan, refused
from atoll_runtime.contract import EXIT_RESTART, UnitReport

NOW = 1_700_000_000.0
TWO_OF_ONE_HOST = SPEC.model_copy(update={"topology": "2x2", "machine_type": None, "slices": 2})
ORDERS = Orders(
    stop="",
    finishing=False,
    recovery=RecoverySpec(),
    settings=PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={}),
)


def make_pod(incarnation: int = 1, host: int = 0, **changes: Any) -> PodView:
    name = f"r-two-0-{incarnation}-{host}"
    running = {"phase": "Running", "node": f"n{host}", "ready": True, "started_at": NOW - 60}
    return PodView(
        name=name,
        uid=name,
        unit="r-two-0",
        gang=incarnation,
        incarnation=incarnation,
        host=host,
        **(running | changes),
    )


def make_unit(pods: tuple[PodView, ...] | None = None, **changes: Any) -> UnitObserved:
    status = changes.pop("status", None) or LearnerUnitStatus(
        phase="Joining", incarnation=1, gang=1, placed_gang=1
    )
    values: dict[str, Any] = {
        "name": "r-two-0", "namespace": "ns", "uid": "u", "generation": 1, "spec": SPEC, "status": status,
        "pods": (make_pod(host=0), make_pod(host=1)) if pods is None else pods, "orders": ORDERS,
    }  # fmt: skip
    return UnitObserved(**(values | changes))


def created(plan: UnitPlan) -> list[str]:
    return [pod["metadata"]["name"] for pod in plan.create]


def test_a_new_unit_gets_its_first_incarnation_before_any_pod() -> None:
    plan = plan_unit(make_unit((), status=LearnerUnitStatus()), NOW)
    assert plan.advance
    assert plan.status.incarnation == 1
    assert not plan.create
    following = plan_unit(make_unit((), status=plan.status), NOW)
    assert created(following) == ["r-two-0-1-0", "r-two-0-1-1"]
    assert following.status.placed_gang == 0


def test_a_new_unit_of_an_old_name_starts_above_what_the_syncer_has_seen() -> None:
    report = UnitReport(incarnation=7, hosts=0, state="Gone")
    unit = make_unit((), status=LearnerUnitStatus(), report=report, answering_since=NOW)
    assert plan_unit(unit, NOW).status.incarnation == 8


def test_only_what_is_missing_of_a_gang_that_is_not_placed_is_made() -> None:
    status = LearnerUnitStatus(incarnation=2, gang=2, placed_gang=1)
    plan = plan_unit(make_unit((make_pod(2, 1), make_pod(1, 0)), status=status), NOW)
    assert not plan.advance
    assert created(plan) == ["r-two-0-2-0"]
    assert [removal.name for removal in plan.remove] == ["r-two-0-1-0"]


def test_a_gang_is_placed_when_all_its_pods_exist() -> None:
    status = LearnerUnitStatus(incarnation=1, gang=1)
    assert plan_unit(make_unit(status=status), NOW).status.placed_gang == 1


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        pytest.param((make_pod(), make_pod(host=1, phase="Failed", exit_code=64)), "AppError", id="failed"),
        pytest.param(
            (make_pod(), make_pod(host=1, deletion_time=NOW, disruption="EvictionByEvictionAPI")),
            "Evicted",
            id="terminating",
        ),
    ],
)
def test_a_loss_in_a_placed_gang_advances_first_and_removes_after(pods, reason) -> None:
    plan = plan_unit(make_unit(pods), NOW)
    assert plan.advance
    assert (plan.create, plan.remove) == ((), ())
    assert (plan.status.incarnation, plan.status.placed_gang) == (2, 1)
    assert plan.status.last_failure is not None
    assert plan.status.last_failure.reason == reason
    assert is_true(plan.status.conditions, "Healing")
    following = plan_unit(make_unit(pods, status=plan.status), NOW + 1)
    assert not following.advance
    assert created(following) == ["r-two-0-2-0", "r-two-0-2-1"]
    assert following.status.restart_count == 1


def test_a_second_failure_within_seconds_waits_and_a_third_waits_longer() -> None:
    failed = (make_pod(phase="Failed", exit_code=1), make_pod(host=1))
    first = plan_unit(make_unit(failed), NOW).status.model_copy(update={"gang": 2, "placed_gang": 2})
    again = (make_pod(2, phase="Failed", exit_code=1), make_pod(2, 1))
    waits = plan_unit(make_unit(again, status=first), NOW + 1)
    assert not waits.advance
    assert waits.wake == pytest.approx(NOW + 5)
    assert find(waits.status.conditions, "Healing").reason == "BackOff"
    assert plan_unit(make_unit(again, status=waits.status), NOW + 2).status == waits.status
    second = plan_unit(make_unit(again, status=waits.status), NOW + 6)
    assert second.status.incarnation == 3
    third = plan_unit(
        make_unit(
            (make_pod(3, phase="Failed", exit_code=1), make_pod(3, 1)),
            status=second.status.model_copy(update={"gang": 3, "placed_gang": 3}),
        ),
        NOW + 7,
    )
    assert third.wake == pytest.approx(NOW + 16)


def test_an_exhausted_budget_is_final() -> None:
    orders = replace(ORDERS, recovery=RecoverySpec(max_restarts=0))
    pods = (
        make_pod(phase="Failed", exit_code=64, exit_message="DataMissing: no meta.json"),
        make_pod(host=1),
    )
    plan = plan_unit(make_unit(pods, orders=orders), NOW)
    assert plan.status.phase == "Failed"
    assert "no meta.json" in plan.status.message
    later = plan_unit(make_unit(pods, status=plan.status, orders=orders), NOW + 1_000_000)
    assert later.status == plan.status
    assert [removal.name for removal in later.remove] == ["r-two-0-1-1"]


def test_a_larger_budget_gives_a_failed_unit_what_it_adds() -> None:
    spent = tuple(Restart(time=format_time(NOW - 60 * ago), reason="AppError") for ago in (2, 1))
    begun = LearnerUnitStatus(phase="Joining", incarnation=3, gang=3, placed_gang=3, restarts=spent)
    gone = (make_pod(incarnation=3, phase="Failed", exit_code=1), make_pod(incarnation=3, host=1))

    def look(status: LearnerUnitStatus, most: int, later: float) -> UnitPlan:
        orders = replace(ORDERS, recovery=RecoverySpec(max_restarts=most))
        return plan_unit(make_unit(gone, status=status, orders=orders), NOW + later)

    failed = look(begun, 2, 0).status
    assert failed.phase == "Failed"
    assert not look(failed, 2, 10**6).advance, "its window has passed, and nobody has changed anything"
    tried = look(failed, 3, 1)
    assert tried.advance
    assert (tried.status.phase, tried.status.incarnation, tried.status.restart_count) == ("Pending", 4, 1)
    gone = tuple(replace(pod, gang=4, incarnation=4, name=pod.name.replace("-3-", "-4-")) for pod in gone)
    again = tried.status.model_copy(update={"placed_gang": 4})
    assert look(again, 3, 2).status.phase == "Failed", "the one that was added is spent"


def test_a_unit_made_anew_waits_for_the_syncer_of_a_run_that_has_begun() -> None:
    """The journal may know its name with a later incarnation, or with the very one that a guess would give."""
    begun = replace(ORDERS, begun=True)
    unit = make_unit((), status=LearnerUnitStatus(), orders=begun)
    waits = plan_unit(unit, NOW)
    assert not waits.advance and not waits.create
    assert (waits.status.phase, waits.status.incarnation) == ("Pending", 0)
    assert find(waits.status.conditions, "Scheduled").reason == "SyncerUnavailable"
    assert waits.wake == NOW + 2, "of a unit that is new to the syncer its answer is no news"
    assert plan_unit(replace(unit, answering_since=NOW), NOW).status.incarnation == 1
    known = UnitReport(incarnation=7, hosts=0, state="Gone")
    assert plan_unit(replace(unit, answering_since=NOW, report=known), NOW).status.incarnation == 8
    assert plan_unit(replace(unit, orders=ORDERS), NOW).advance, "nothing is merged: nobody knows its name"


def test_a_gang_that_the_syncer_would_fence_off_is_made_anew_at_no_cost() -> None:
    status = LearnerUnitStatus(phase="Starting", incarnation=1, gang=1)
    plan = plan_unit(make_unit(status=status, report=UnitReport(incarnation=7, hosts=0, state="Gone")), NOW)
    assert plan.advance
    assert (plan.status.incarnation, plan.status.restart_count, plan.status.restarts) == (8, 0, ())


def test_a_unit_that_drains_ends_between_two_steps_though_its_spec_changes() -> None:
    pods = (make_pod(host=0), make_pod(host=1))
    draining = transition((), {"Draining": state(True, "HostMaintenance")}, 1, NOW)
    status = LearnerUnitStatus(
        phase="Healing", incarnation=1, gang=1, placed_gang=1, observed_generation=1, conditions=draining
    )
    plan = plan_unit(make_unit(pods, status=status, generation=2), NOW)
    assert not plan.advance
    assert [removal.grace_seconds for removal in plan.remove] == [60, 60]
    ended = tuple(replace(pod, phase="Succeeded", exit_code=0) for pod in pods)
    assert plan_unit(make_unit(ended, status=status, generation=2), NOW).advance


def test_a_pod_that_ends_with_zero_is_given_time_and_then_replaced() -> None:
    pods = (make_pod(phase="Succeeded", exit_code=0, finished_at=NOW), make_pod(host=1))
    patient = plan_unit(make_unit(pods), NOW + 1)
    assert not patient.advance
    assert patient.wake == NOW + 15
    assert plan_unit(make_unit(pods), NOW + 16).status.last_failure.reason == "UnexpectedExit"
    finishing = plan_unit(make_unit(pods, orders=replace(ORDERS, finishing=True)), NOW + 16)
    assert not finishing.advance


def test_hosts_that_never_connect_are_replaced_after_the_startup_time() -> None:
    unit = make_unit(answering_since=NOW - 10)
    assert plan_unit(unit, NOW).wake == NOW - 10 + 1800
    assert plan_unit(unit, NOW + 1800).status.last_failure.reason == "StartupTimedOut"
    connected = replace(unit, report=UnitReport(incarnation=1, hosts=2, state="Joining"))
    assert not plan_unit(connected, NOW + 1_000_000).advance
    silent = replace(unit, answering_since=None)
    assert not plan_unit(silent, NOW + 1_000_000).advance


def test_a_heal_ends_with_the_first_merge_of_the_new_incarnation() -> None:
    status = LearnerUnitStatus(incarnation=2, gang=2, placed_gang=2, heal_start_time=format_time(NOW))
    pods = (make_pod(2), make_pod(2, 1))
    old = UnitReport(incarnation=1, hosts=2, state="Learning", first_merge_time=NOW - 100)
    assert (
        plan_unit(make_unit(pods, status=status, report=old, answering_since=NOW), NOW + 1).healed_seconds
        is None
    )
    new = UnitReport(incarnation=2, hosts=2, state="Learning", seeded_step=40, first_merge_time=NOW + 12.5)
    plan = plan_unit(make_unit(pods, status=status, report=new, answering_since=NOW), NOW + 14)
    assert plan.healed_seconds == 12.5
    assert plan.status.last_heal_seconds == 12.5
    assert plan.status.heal_start_time is None
    assert find(plan.status.conditions, "Seeded").message == "from the global checkpoint of step 40"
    again = plan_unit(make_unit(pods, status=plan.status, report=new, answering_since=NOW), NOW + 15)
    assert again.healed_seconds is None


def test_a_unit_that_a_peer_may_have_seeded_says_what_it_was_told() -> None:
    report = UnitReport(
        incarnation=1, hosts=2, state="Joining", seeded_step=40, seed_message="seeded from peer r-one-0"
    )
    orders = replace(ORDERS, recovery=RecoverySpec(seed="Peer"))
    plan = plan_unit(make_unit(report=report, orders=orders, answering_since=NOW), NOW)
    seeded = find(plan.status.conditions, "Seeded")
    assert (seeded.status, seeded.reason) == ("True", "Seeded")
    assert seeded.message == "at global step 40; seeded from peer r-one-0"


def test_the_ledger_of_a_unit_is_of_all_its_incarnations_and_is_final_when_the_run_is() -> None:
    old = LedgerStatus(fragments=4, trained=80, merged=60, in_flight=20)
    status = LearnerUnitStatus(incarnation=2, gang=2, placed_gang=2, ledger=old)
    report = UnitReport(incarnation=1, hosts=0, state="Gone")
    pods = (make_pod(2), make_pod(2, 1))
    final = LedgerStatus(fragments=4, trained=80, merged=60, discarded={"Finished": 20})
    healing = make_unit(pods, status=status, report=report, ledger=final, answering_since=NOW)
    assert plan_unit(healing, NOW).status.ledger == final
    finished = make_unit(pods, status=status, ledger=final, orders=replace(ORDERS, stop="Finished"))
    assert plan_unit(finished, NOW).status.ledger == final
    assert plan_unit(make_unit(pods, status=status), NOW).status.ledger == old


def test_while_the_syncer_is_silent_what_was_known_of_a_unit_stays() -> None:
    report = UnitReport(incarnation=1, hosts=2, state="Learning", seeded_step=0)
    learning = plan_unit(make_unit(report=report, answering_since=NOW), NOW).status
    silent = plan_unit(make_unit(status=learning), NOW + 60).status
    assert is_true(silent.conditions, "Learning")
    assert silent.phase == "Learning"


def test_a_suspended_unit_has_no_pods_and_resumes_with_the_next_incarnation() -> None:
    plan = plan_unit(make_unit(orders=replace(ORDERS, stop="Suspended")), NOW)
    assert len(plan.remove) == 2
    resumed = plan_unit(make_unit((), status=plan.status), NOW)
    assert resumed.advance
    assert (resumed.status.incarnation, resumed.status.restart_count) == (2, 0)


@pytest.mark.parametrize(
    ("healing", "grace"),
    [pytest.param(None, DRAIN_SECONDS, id="sound"), pytest.param(format_time(NOW - 1), 1, id="failed")],
)
def test_hosts_of_a_sound_gang_have_time_to_end_together_and_those_of_a_failed_one_go(healing, grace) -> None:
    status = LearnerUnitStatus(incarnation=2, gang=2, placed_gang=2, heal_start_time=healing)
    plan = plan_unit(make_unit((make_pod(1), make_pod(2), make_pod(2, 1)), status=status), NOW)
    assert [(removal.name, removal.grace_seconds) for removal in plan.remove] == [("r-two-0-1-0", grace)]


def test_a_pod_that_will_not_go_is_removed_by_force_where_that_is_wanted() -> None:
    stuck = make_pod(1, deletion_time=NOW - 31)
    status = LearnerUnitStatus(incarnation=2, gang=2, placed_gang=2)
    unit = make_unit((stuck, make_pod(2), make_pod(2, 1)), status=status)
    assert plan_unit(unit, NOW).remove == ()
    wanted = replace(unit, orders=replace(ORDERS, recovery=RecoverySpec(force_delete=True)))
    plan = plan_unit(wanted, NOW)
    assert [(removal.name, removal.grace_seconds) for removal in plan.remove] == [("r-two-0-1-0", 0)]
    assert plan_unit(wanted, NOW - 2).wake == NOW - 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"orders": None, "pods": ()}, "RunNotFound", id="no-run"),
        pytest.param({"spec": SPEC.model_copy(update={"topology": "3x3"})}, "SpecInvalid", id="shape"),
        pytest.param({"spec": TWO_OF_ONE_HOST}, "SpecInvalid", id="slices-of-one-host"),
    ],
)
def test_a_unit_that_cannot_be_made_says_why_and_does_nothing(changes, reason) -> None:
    plan = plan_unit(make_unit(**changes), NOW)
    assert (plan.create, plan.remove, plan.advance) == ((), (), False)
    assert find(plan.status.conditions, "Scheduled").reason == reason


def test_a_unit_whose_slices_cannot_be_says_so_with_the_field_and_what_is_right() -> None:
    """One that an API server took which knew no better."""
    said = find(plan_unit(make_unit((), spec=TWO_OF_ONE_HOST), NOW).status.conditions, "Scheduled").message
    assert said.startswith("slices 2: ")
    assert "1 is right" in said


@pytest.mark.parametrize(
    "without",
    [
        pytest.param(None, id="the-run-was-gone"),
        pytest.param(replace(ORDERS, stop="Suspended"), id="suspended"),
        pytest.param(replace(ORDERS, stop="Finished"), id="an-earlier-run-of-the-name-was-over"),
    ],
)
@pytest.mark.parametrize("healing", [None, format_time(NOW - 5)], ids=["learning", "healing"])
def test_a_unit_whose_gang_was_taken_away_comes_back_as_the_next_incarnation_without_a_failure(
    without, healing
) -> None:
    unit = make_unit()
    status = unit.status.model_copy(update={"heal_start_time": healing, "observed_generation": 1})
    gone = plan_unit(replace(unit, status=status, orders=without), NOW).status
    back = plan_unit(replace(unit, status=gone, pods=()), NOW + 86_400)
    assert back.advance
    assert back.notices == ()
    assert (back.status.incarnation, back.status.restart_count, back.status.restarts) == (2, 0, ())
    assert (back.status.last_failure, back.status.heal_start_time) == (None, None)
    following = plan_unit(replace(unit, status=back.status, pods=()), NOW + 86_400)
    assert (following.advance, created(following)) == (False, ["r-two-0-2-0", "r-two-0-2-1"])


def test_a_unit_whose_run_is_gone_gives_its_chips_back() -> None:
    unit = make_unit()
    plan = plan_unit(replace(unit, orders=None), NOW)
    assert {removal.name for removal in plan.remove} == {pod.name for pod in unit.pods} != set()
    assert plan.create == ()


def test_pods_of_a_multi_host_slice_share_a_node_pool_and_carry_one_contract() -> None:
    pods = plan_unit(make_unit((), status=LearnerUnitStatus(incarnation=1, gang=1)), NOW).create
    environments = [
        {item["name"]: item["value"] for item in pod["spec"]["containers"][0]["env"]} for pod in pods
    ]
    contracts = [json.loads(environment["ATOLL_UNIT"]) for environment in environments]
    assert [contract["host"] for contract in contracts] == [0, 1]
    assert {contract["coordinator"] for contract in contracts} == {"r-two-0-1-0.r-two-0.ns.svc:8476"}
    assert [contract["address"] for contract in contracts] == [
        f"r-two-0-1-{host}.r-two-0.ns.svc:7403" for host in (0, 1)
    ]
    assert not any(name.startswith("MEGASCALE") for environment in environments for name in environment)
    rules = pods[0]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rules[0]["topologyKey"] == "cloud.google.com/gke-nodepool"


@dataclass
class World:
    """An API server and a kubelet for one unit; `turn` is one pass of an operator that may die between writes."""

    force: bool
    now: float = NOW
    status: LearnerUnitStatus = field(default_factory=LearnerUnitStatus)
    pods: dict[str, PodView] = field(default_factory=dict)
    nodes: dict[str, NodeView] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)
    """Of each pod's process, its incarnation; 0 for one that waits for a greater number than its predecessor had."""
    departed: dict[int, PodView] = field(default_factory=dict)

    def observe(self) -> UnitObserved:
        orders = replace(ORDERS, recovery=RecoverySpec(force_delete=self.force))
        return make_unit(
            tuple(self.pods.values()),
            status=self.status,
            orders=orders,
            nodes=self.nodes,
            departed=self.departed,
        )

    def turn(self, writes: int = 100) -> bool:
        """Carries out at most so many writes of a plan; whether anything was left to do."""
        plan = plan_unit(self.observe(), self.now)
        if plan.advance:
            self.status = plan.status if writes else self.status
            return True
        actions: list[Any] = [*plan.remove, *plan.create, *plan.renew]
        for action in actions[:writes]:
            if isinstance(action, dict):
                name = action["metadata"]["name"]
                assert name not in self.pods
                number, host = map(int, name.rsplit("-", 2)[1:])
                gang = int(action["metadata"]["labels"]["atoll.dev/gang"])
                new = make_pod(number, host, node=f"node-{gang}-{host}", started_at=self.now)
                self.pods[name] = replace(new, gang=gang, made_for=number)
                self.processes[name] = number
            elif isinstance(action, Renewal):
                self.renew(action)
            else:
                self.remove(action)
        if writes < len(actions):
            return True
        changed = plan.status != self.status
        self.status = plan.status
        return changed or bool(actions)

    def renew(self, renewal: Renewal) -> None:
        """A process that runs makes room; what follows, and one that waited, takes the new number."""
        pod = replace(self.pods[renewal.name], incarnation=renewal.incarnation)
        if last := self.processes[renewal.name]:
            pod = replace(pod, exit_code=EXIT_RESTART, ended_incarnation=last)
        self.pods[renewal.name] = pod
        self.processes[renewal.name] = renewal.incarnation

    def remove(self, removal: Removal) -> None:
        """A kubelet that is there removes the pod; on a silent node it stays terminating unless forced."""
        pod = self.pods[removal.name]
        if pod.node in self.nodes and removal.grace_seconds:
            self.pods[pod.name] = replace(pod, deletion_time=self.now + removal.grace_seconds)
        else:
            del self.pods[pod.name]

    def lose(self, kind: str, number: int) -> None:
        """Something happens to one of the pods, or to its node."""
        name = sorted(self.pods)[number % len(self.pods)]
        pod = self.pods[name]
        if kind == "delete":
            self.departed[pod.host] = replace(self.pods.pop(name), deletion_time=self.now)
        elif kind == "vanish":
            del self.pods[name]
        elif kind == "fail":
            self.pods[name] = replace(pod, phase="Failed", exit_code=1)
        elif kind == "crash":
            if last := self.processes[name]:
                self.pods[name] = replace(pod, exit_code=1, ended_incarnation=last)
                self.processes[name] = 0
        elif kind == "terminate":
            self.pods[name] = replace(pod, deletion_time=self.now)
        elif kind == "silence":
            self.nodes[pod.node] = NodeView(name=pod.node, silent_since=self.now)
        else:
            self.nodes[pod.node] = NodeView(name=pod.node, maintenance="taint")


LOSSES = ["crash", "fail", "delete", "vanish", "terminate", "silence", "maintain"]
EVENTS = st.one_of(
    st.tuples(st.just("turn"), st.integers(0, 4)),
    st.tuples(st.sampled_from(LOSSES), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(0, 400)),
)


@settings(max_examples=200)
@given(st.booleans(), st.lists(EVENTS, max_size=40))
def test_whatever_fails_and_whenever_the_operator_dies_one_whole_gang_is_left(force, events) -> None:
    world = World(force)
    incarnation = 0
    for kind, number in events:
        if kind == "turn":
            world.turn(number)
        elif kind == "wait":
            world.now += number
        elif world.pods:
            world.lose(kind, number)
        assert world.status.incarnation >= incarnation
        assert world.status.placed_gang <= world.status.gang <= world.status.incarnation
        incarnation = world.status.incarnation
    for _ in range(20):
        world.now += 400  # past every back-off, and in the end past the window
        for _ in range(20):
            if not world.turn():
                break
        else:
            raise AssertionError("no rest within 20 passes")
    assert world.status.phase in ("Failed", "Joining", "Healing")
    if world.status.phase != "Failed":
        ours = [pod for pod in world.pods.values() if pod.gang == world.status.gang]
        wanted = {max((pod.made_for, pod.name) for pod in ours if pod.host == host)[1] for host in range(2)}
        left = {name for name in world.pods if name not in wanted}
        assert wanted <= set(world.pods)
        assert not any(world.pods[name].ended or world.pods[name].deletion_time for name in wanted)
        assert all(world.pods[name].deletion_time for name in left)
        assert not (force and left)
        assert {world.processes[name] for name in wanted} == {world.status.incarnation}
        assert world.status.placed_gang == world.status.gang


def test_a_unit_that_stays_refused_has_the_same_status_at_every_try() -> None:
    old = LearnerUnitStatus(incarnation=1, gang=1)
    tries = []
    for later in (0.0, 5.0, 10.0):
        plan = plan_unit(make_unit(status=old), NOW + later)
        old = refused(plan, old, "pods are forbidden: quota", NOW + later).status
        tries.append(document(old))
    scheduled = find(old.conditions, "Scheduled")
    assert (scheduled.status, scheduled.last_transition_time) == ("False", format_time(NOW))
    assert tries[0] == tries[1] == tries[2]
