"""A LearnerUnit with its pods and nodes as Kubernetes JSON, the real plan, and a cluster that does as it is told.

A test builds a scene, lets something happen, lets the operator look, and reads the world that follows.
"""

from __future__ import annotations

from typing import Any

from objects import TWO_HOSTS

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.group import ACCELERATOR, ANNOTATION_INCARNATION, NODE_POOL, TOPOLOGY, TPU
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import find
from atoll_operator.plan.nodes import NodeView, gone, sound_chips, view_node
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import view
from atoll_operator.plan.unit.deadlines import follow
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.unit import Pace, UnitObserved, UnitPlan
from atoll_runtime.contract import EXIT_RESTART, BeginningReport, LastWords, UnitReport

Object = dict[str, Any]
NOW = 1_700_000_000.0
UNIT = "r-two-0"
FOUR_HOSTS = TWO_HOSTS.model_copy(update={"topology": "4x4", "machine_type": None})
TWO_SLICES = TWO_HOSTS.model_copy(update={"slices": 2})
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
HOSTS = {"2x2": 1, "2x4": 2, "4x4": 4}


class Scene:
    """One unit. Time stands still unless a test moves it.

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
        self.now = NOW
        self.name = name
        self.spec = spec.model_copy(update=changes)
        self.size = HOSTS[spec.topology]
        self.hosts = self.size * self.spec.slices
        self.recovery = RecoverySpec(**(recovery or {}))
        self.settings, self.sees_nodes = SETTINGS, sees_nodes
        self.stop, self.finishing, self.begun, self.has_run = "", False, False, True
        self.generation = 1
        self.annotations: dict[str, str] = {}
        self.status = LearnerUnitStatus()
        self.pods: dict[str, Object] = {}
        self.nodes: dict[str, NodeView] = {}
        self.answering_since: float | None = NOW - 9000
        self.heard: float | None = None
        self.report: UnitReport | None = None
        self.ledger: LedgerStatus | None = None
        self.pace: Pace | None = None
        self.plan: UnitPlan
        self.uids = 0
        for pool in ("red", "blue"):
            for host in range(self.size):
                self.put_node(f"{pool}-{host}", pool)

    # What the operator sees and does

    def observe(self) -> UnitObserved:
        views = tuple(view(pod) for pod in self.pods.values())
        self.pace = follow(self.pace, self.report, self.answering_since, self.now)
        kind = (self.spec.accelerator, self.spec.topology)
        return UnitObserved(
            now=self.now,
            stop=self.stop if self.has_run else "RunNotFound",  # type: ignore[arg-type]
            finishing=self.finishing,
            recovery=self.recovery,
            settings=self.settings,
            begun=self.begun,
            name=self.name,
            namespace="ns",
            uid=f"{self.name}-uid",
            generation=self.generation,
            spec=self.spec,
            status=self.status,
            annotations=self.annotations,
            pods=views,
            report=self.report if self.answering_since is not None else None,
            ledger=self.ledger,
            answering_since=self.answering_since,
            heard=self.heard,
            pace=self.pace,
            nodes={pod.node: self.nodes[pod.node] for pod in views if pod.node in self.nodes}
            if self.sees_nodes
            else {},
            sees_nodes=self.sees_nodes,
            sound_chips=sound_chips(self.nodes.values()).get(kind, {}) if self.sees_nodes else {},
        )

    def look(self, after: float = 0.0) -> UnitPlan:
        """The plan of now, or of so much later, that nobody carries out."""
        self.now += after
        self.plan = plan_unit(self.observe())
        self.now -= after
        return self.plan

    def turn(self, writes: int = 1000) -> bool:
        """One pass of an operator that dies after so many writes; whether there was anything to do."""
        plan = self.look()
        if plan.advance:
            self.status = plan.status if writes else self.status
            return True
        done = [*plan.remove, *plan.create, *plan.renew]
        for removal in plan.remove[:writes]:
            self.remove(removal.name, removal.grace_seconds)
        for body in plan.create[: max(writes - len(plan.remove), 0)]:
            self.create(body)
        for pod in plan.renew[: max(writes - len(plan.remove) - len(plan.create), 0)]:
            told = {ANNOTATION_INCARNATION: str(plan.status.incarnation)}
            self.pods[pod.name]["metadata"]["annotations"] |= told
        if writes < len(done):
            return True
        changed = plan.status != self.status
        self.status = plan.status
        return changed or bool(done)

    def rest(self) -> Scene:
        """Passes until there is nothing left to do."""
        for _ in range(20):
            if not self.turn():
                return self
        raise AssertionError(f"no rest within 20 passes: {self.status}")

    # What the cluster does

    def put_node(self, name: str, pool: str, **changes: Any) -> None:
        labels = {NODE_POOL: pool, ACCELERATOR: self.spec.accelerator, TOPOLOGY: self.spec.topology}
        body = {
            "metadata": {"name": name, "labels": {**labels, **changes.pop("labels", {})}},
            "spec": changes.pop("spec", {}),
            "status": {
                "allocatable": {TPU: "4"},
                "conditions": [{"type": "Ready", "status": changes.pop("ready", "True")}],
            },
        }
        self.nodes[name] = view_node(body, self.nodes.get(name), self.now)

    def node_of(self, host: int) -> str:
        return str(self.pod(host)["spec"]["nodeName"])

    def change_node(self, host: int, **changes: Any) -> None:
        name = self.node_of(host)
        self.put_node(name, self.nodes[name].pool, **changes)

    def delete_node(self, host: int) -> None:
        name = self.node_of(host)
        self.nodes[name] = gone(self.nodes[name])

    def create(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        assert name not in self.pods, f"{name} is there already"
        self.uids += 1
        metadata = {
            **pod["metadata"],
            "uid": f"{self.uids}",
            "annotations": {**pod["metadata"]["annotations"]},
        }
        self.pods[name] = {
            **pod,
            "metadata": metadata,
            "spec": {**pod["spec"]},
            "status": {"phase": "Pending"},
        }

    def remove(self, name: str, grace: int) -> None:
        """A kubelet that is there removes the pod; on a silent node it stays terminating."""
        pod = self.pods[name]
        node = self.nodes.get(pod["spec"].get("nodeName", ""))
        if grace and node is not None and not node.sound:
            pod["metadata"]["deletionTimestamp"] = format_time(self.now + grace)
        else:
            del self.pods[name]

    def pod(self, host: int) -> Object:
        """The newest pod of a host."""
        ours = [pod for pod in self.pods.values() if pod["metadata"]["labels"]["atoll.dev/host"] == str(host)]
        return max(ours, key=lambda pod: int(pod["metadata"]["uid"]))

    def bind(self, host: int, node: str) -> None:
        pod = self.pod(host)
        pod["spec"]["nodeName"] = node
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(self.now)}
        pod["status"]["conditions"] = [bound]

    def unschedulable(self, host: int) -> None:
        told = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes",
            "lastTransitionTime": format_time(self.now),
        }  # fmt: skip
        self.pod(host)["status"]["conditions"] = [told]

    def start(self, host: int) -> None:
        """The container runs, and the pod is ready."""
        status = self.pod(host)["status"]
        running = {"running": {"startedAt": format_time(self.now)}}
        conditions = [*status.get("conditions", ()), {"type": "Ready", "status": "True"}]
        status |= {"phase": "Running", "containerStatuses": [{"name": "main", "state": running}]}
        status["conditions"] = conditions

    def place(self, pool: str = "red") -> Scene:
        """Scheduler and kubelets do their work on all pods that wait, each host on its own node of the pool."""
        for _ in range(3):  # followers are created when their leader is bound
            self.rest()
            for name in list(self.pods):
                host = int(self.pods[name]["metadata"]["labels"]["atoll.dev/host"])
                if self.pods[name] is self.pod(host) and "nodeName" not in self.pods[name]["spec"]:
                    part = pool if host < self.size else "blue"
                    self.bind(host, f"{part}-{host % self.size}")
                    self.start(host)
        return self

    def hear(self, state: str = "Learning", **changes: Any) -> Scene:
        """The syncer reports all hosts of the current incarnation."""
        values = {
            "incarnation": self.status.incarnation, "hosts": self.hosts, "state": state, "step": 40, "loss": 3.5,
            "seeded_step": 0, "first_merge_time": self.now,
        }  # fmt: skip
        self.report = UnitReport(**(values | changes))
        return self.rest()

    # What happens to pods

    def fail(self, host: int, exit_code: int | None = 1, **status: Any) -> None:
        """The pod ends."""
        ended = {"exitCode": exit_code, "finishedAt": format_time(self.now)}
        main = [{"name": "main", "state": {"terminated": ended}}] if exit_code is not None else []
        changed = {"phase": "Failed" if exit_code != 0 else "Succeeded", "containerStatuses": main, **status}
        self.pod(host)["status"] |= changed

    def crash(
        self, host: int, exit_code: int = 1, words: str = "OSError: no", of: int | None = None, **more: Any
    ) -> None:
        """The container ends, of the incarnation `of` (0: it names none), and its kubelet starts it again."""
        number = self.status.incarnation if of is None else of
        message = str(LastWords(number, words)) if number else words
        ended = {"exitCode": exit_code, "message": message, "finishedAt": format_time(self.now), **more}
        status = self.pod(host)["status"]
        status["containerStatuses"] = [
            {
                "name": "main",
                "state": {"running": {"startedAt": format_time(self.now)}},
                "lastState": {"terminated": ended},
            }
        ]

    def make_room(self, *hosts: int) -> None:
        """Processes of the last incarnation end for the current one."""
        for host in hosts:
            self.crash(host, EXIT_RESTART, "", of=self.status.incarnation - 1)

    def delete(self, host: int, grace: float = 30.0, disruption: str = "") -> None:
        """Somebody deletes the pod, and it has not ended yet."""
        pod = self.pod(host)
        pod["metadata"]["deletionTimestamp"] = format_time(self.now + grace)
        if disruption:
            self.disrupt(host, disruption)

    def disrupt(self, host: int, reason: str) -> None:
        told = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        self.pod(host)["status"]["conditions"] = [*self.pod(host)["status"].get("conditions", []), told]

    def vanish(self, host: int) -> None:
        """The pod goes, and nobody saw it terminating."""
        del self.pods[self.pod(host)["metadata"]["name"]]

    # What a test reads

    def names(self) -> list[str]:
        """Pods without the unit's name, in order: `incarnation-host`."""
        return sorted(name.removeprefix(f"{self.name}-") for name in self.pods)

    def told(self) -> set[str]:
        """Incarnations that the pods are told."""
        return {pod["metadata"]["annotations"][ANNOTATION_INCARNATION] for pod in self.pods.values()}

    def condition(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        found = find(self.status.conditions, name)
        return ("", "", "") if found is None else (found.status, found.reason, found.message)

    @property
    def numbers(self) -> tuple[int, int]:
        """Incarnation and placement."""
        return self.status.incarnation, self.status.placement

    @property
    def reason(self) -> str:
        """Of the last failure."""
        return self.status.last_failure.reason if self.status.last_failure is not None else ""


def learning(spec: LearnerUnitSpec = FOUR_HOSTS, **changes: Any) -> Scene:
    """A unit whose hosts all run, have met, and were merged; incarnation and placement are 1."""
    scene = Scene(spec, **changes).place().hear()
    scene.now += 3600
    scene.hear(step=90)
    assert scene.status.phase == "Learning", scene.status
    return scene


def begun(joined: float, stepped: float, compiling: float) -> BeginningReport:
    return BeginningReport(joined=joined, stepped=stepped, compiling=compiling)
