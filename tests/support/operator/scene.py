"""A LearnerUnit with its pods and nodes as Kubernetes JSON, the real plan, and a cluster that carries the plan out. A
test builds a scene, changes something, lets the operator act, and reads the resulting state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from objects import TWO_HOSTS
from scene_cluster import NOW, SceneCluster

from atoll_operator.api.group import ANNOTATION_INCARNATION
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import find
from atoll_operator.plan.nodes import sound_chips
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import view
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit.deadlines import follow
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import Pace, UnitObserved, UnitPlan
from atoll_runtime import contract

UNIT = "r-two-0"
FOUR_HOSTS = TWO_HOSTS.model_copy(update={"topology": "4x4", "machine_type": None})
TWO_SLICES = TWO_HOSTS.model_copy(update={"slices": 2})
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
TOLD = (
    "now", "name", "generation", "spec", "status", "annotations", "recovery", "communication", "settings", "begun",
    "sees_nodes", "waits", "unknown",
)  # fmt: skip
"""Fields of a scene that the operator observes unchanged."""


class Scene(SceneCluster):
    """One unit.

    Args:
        recovery: fields of the run's `recovery`.
        changes: fields of the unit's spec.
    """

    def __init__(
        self,
        spec: LearnerUnitSpec = FOUR_HOSTS,
        *,
        name: str = UNIT,
        recovery: dict[str, Any] | None = None,
        sees_nodes: bool = True,
        **changes: Any,
    ) -> None:
        super().__init__(spec.model_copy(update=changes))
        self.name = name
        self.hosts = self.size * self.spec.slices
        self.recovery = RecoverySpec(**(recovery or {}))
        self.settings, self.sees_nodes = SETTINGS, sees_nodes
        self.communication = contract.CommunicationSpec()
        self.stop, self.finishing, self.begun, self.generation = "", False, False, 1
        self.annotations: dict[str, str] = {}
        self.waits, self.unknown = "", dict[str, Any]()
        self.status = LearnerUnitStatus()
        self.answering_since: float | None = NOW - 9000
        self.heard: float | None = None
        self.report: contract.UnitReport | None = None
        self.ledger: contract.LedgerReport | None = None
        self.pace: Pace | None = None
        self.plan: UnitPlan

    # What the operator sees and does

    def observe(self) -> UnitObserved:
        views = tuple(view(pod) for pod in self.pods.values())
        self.pace = follow(self.pace, self.report, self.answering_since, self.now)
        seen = self.nodes if self.sees_nodes else {}
        kind = (self.spec.accelerator, self.spec.topology)
        return UnitObserved(
            **{name: getattr(self, name) for name in TOLD},
            namespace="ns",
            uid=f"{self.name}-uid",
            pods=views,
            stop=self.stop,  # type: ignore[arg-type]
            syncer=self.syncer(),
            pace=self.pace,
            nodes={pod.node: seen[pod.node] for pod in views if pod.node in seen},
            sound_chips=sound_chips(seen.values()).get(kind, {}),
        )

    def syncer(self) -> SyncerState:
        status = contract.SyncerStatus(
            run_uid="u", phase="Finishing" if self.finishing else "Running", fragments=4,
            units={self.name: self.report} if self.report is not None else {},
            ledger={self.name: self.ledger} if self.ledger is not None else {},
        )  # fmt: skip
        since = self.answering_since
        return SyncerState(status=status, answering_since=since, heard_at=self.heard, merged=240)

    def look(self, after: float = 0.0) -> UnitPlan:
        """The plan for now or for `after` seconds later, without carrying it out."""
        self.now += after
        unit = self.observe()
        self.plan = describe(unit, plan_unit(unit))
        self.now -= after
        return self.plan

    def turn(self) -> bool:
        """Make one pass. Return whether there was anything to do."""
        plan, before = self.look(), self.status
        self.status = plan.status
        if plan.advance:
            return True
        for removal in plan.remove:
            self.remove(removal.name, removal.grace_seconds)
        for make in plan.create:
            self.create(make())
        for pod in plan.renew:
            told = {ANNOTATION_INCARNATION: str(plan.status.incarnation)}
            self.pods[pod.name]["metadata"]["annotations"] |= told
        return plan.status != before or bool((*plan.remove, *plan.create, *plan.renew))

    def once(self) -> Self:
        self.turn()
        return self

    def set(self, **fields: Any) -> Self:
        vars(self).update(fields)
        return self

    def rest(self) -> Self:
        """Make passes until there is nothing left to do."""
        for _ in range(20):
            if not self.turn():
                return self
        raise AssertionError(f"no rest within 20 passes: {self.status}")

    def place(self, pool: str = "red") -> Self:
        """Scheduler and kubelets start all waiting pods, each host on its own node of the pool."""
        for _ in range(3):  # followers are created when their leader is bound
            self.rest()
            for name in list(self.pods):
                host = int(self.pods[name]["metadata"]["labels"]["atoll.dev/host"])
                if self.pods[name] is self.pod(host) and "nodeName" not in self.pods[name]["spec"]:
                    part = pool if host < self.size else "blue"
                    self.bind(host, f"{part}-{host % self.size}")
                    self.start(host)
        return self

    def hear(self, state: str = "Learning", **changes: Any) -> Self:
        """The syncer reports all hosts of the current incarnation."""
        values = {
            "incarnation": self.status.incarnation, "hosts": self.hosts, "state": state, "step": 40, "loss": 3.5,
            "seeded_step": 0, "first_merge_time": self.now,
        }  # fmt: skip
        self.report = contract.UnitReport(**(values | changes))
        return self.rest()

    def new_image(self) -> Self:
        self.settings = replace(self.settings, image="new")
        return self

    def crash(self, host: int, exit_code: int = 1, words: str = "OSError: no", of: int | None = None) -> Self:
        """The container of incarnation `of` ends (0: its message names none), and its kubelet starts it again."""
        number = self.status.incarnation if of is None else of
        message = str(contract.LastWords(number, words)) if number else words
        ended = {"exitCode": exit_code, "message": message, "finishedAt": self.time()}
        states = {"state": self.running(), "lastState": {"terminated": ended}}
        self.pod(host)["status"]["containerStatuses"] = [{"name": "main", **states}]
        return self

    def note_restart(self, ago: float = 0.0, reason: str = "AppError", **changes: Any) -> Self:
        """Add a restart to the status that was `ago` seconds ago."""
        restart = Restart(time=self.time(-ago), reason=reason, in_place=changes.pop("in_place", False))
        update = {"restarts": (*self.status.restarts, restart), **changes}
        self.status = self.status.model_copy(update=update)
        return self

    def make_room(self, *hosts: int) -> Self:
        """Processes of the last incarnation end for the current one."""
        for host in hosts:
            self.crash(host, contract.EXIT_RESTART, "", of=self.status.incarnation - 1)
        return self

    # What a test reads

    def names(self) -> list[str]:
        """Pods without the unit's name, in order: `incarnation-host`."""
        return sorted(name.removeprefix(f"{self.name}-") for name in self.pods)

    def condition(self, name: str) -> tuple[str, str, str]:
        found = find(self.status.conditions, name)
        return found.status, found.reason, found.message

    @property
    def numbers(self) -> tuple[int, int]:
        return self.status.incarnation, self.status.placement

    @property
    def reason(self) -> str:
        return self.status.last_failure.reason if self.status.last_failure is not None else ""


def learning(spec: LearnerUnitSpec = FOUR_HOSTS, **changes: Any) -> Scene:
    """A unit with all hosts running and merged. Incarnation and placement are 1."""
    scene = Scene(spec, **changes).place().hear()
    scene.now += 3600
    scene.hear(step=90)
    assert scene.status.phase == "Learning", scene.status
    return scene
