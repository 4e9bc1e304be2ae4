"""A table of all ways in which a unit fails, played in the memory world. In each row something happens to the pod of
host 1 of `r-two-0`, a unit of two hosts. The other unit of the run, the witness, must not be affected. `PAGE` says
which rows play the lines of docs/healing.md."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from memory_apiserver import Object
from memory_world import SPEC, World, played
from worldview import differences

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_HOLDS, LABEL_HOST
from atoll_operator.plan.nodes import ACTIVE_MAINTENANCE, OUT_OF_SERVICE
from atoll_runtime.contract import EXIT_FENCED, EXIT_VERSION, LastWords

SEED = 20261124
UNIT, WITNESS = "r-two-0", "r-one-0"
LONGEST_SECONDS = 900.0
CALM_SECONDS = 30.0
"""Seconds after the end of a row in which nothing more may happen."""
LATE_SECONDS = 40.0
"""Longest time from the moment at which something is due until the operator has done it. It looks at figures that
seldom."""
Act = Callable[[World, Object], Awaitable[None] | None]
Slow = Callable[[World, Object], Awaitable[None]]
Replaced = Literal["none", "pod", "leader", "both", "gang"]
HOSTS: Mapping[Replaced, list[int]] = {"none": [], "pod": [1], "leader": [0], "both": [0, 1], "gang": [0, 1]}


@dataclass(frozen=True, slots=True)
class Row:
    """What happens, and what must follow."""

    name: str
    act: Act
    reason: str
    """The reason of `lastFailure`; empty if nothing may follow."""
    replaced: Replaced
    """The pods that are replaced: one, both in their place, or both on other hosts. The others keep their uids."""
    words: str = ""
    """Part of the failure's message."""
    exit_code: int | None = None
    charged: bool = True
    """Whether a unit without restarts left fails by this."""
    counted: bool = True
    """Whether it counts as a restart. If not, `reason` is that of the last of `status.restarts`."""
    after: float = 0.0
    """Seconds for which nothing is done about it."""
    before: int = 0
    """Restarts that are part of the act, before the one that must follow."""
    early: bool = False
    """Whether it happens as soon as the unit has pods, before its hosts are connected."""
    down: bool = False
    """Whether the operator is down while it happens."""
    recovery: Mapping[str, Any] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the run's spec."""

    @property
    def incarnation(self) -> int:
        """The incarnation in which it ends."""
        return 1 + self.before + bool(self.reason)


def pod_fails(*arguments: Any) -> Act:
    return lambda world, pod: world.cluster.fail_pod(pod, *arguments)


def container_fails(*arguments: Any) -> Act:
    return lambda world, pod: world.cluster.fail_container(pod, *arguments)


def disrupted(by: str, **status: Any) -> Act:
    return lambda world, pod: world.cluster.disrupt(pod, by, phase="Failed", **status)


def loses_node(gone: bool) -> Act:
    return lambda world, pod: world.cluster.lose_node(pod, gone)


silent, node_gone = loses_node(False), loses_node(True)


def ends(reason: str, message: str) -> Act:
    """The kubelet terminates the pod."""
    return disrupted("TerminationByKubelet", reason=reason, message=message)


def fails(**status: Any) -> Act:
    return lambda world, pod: world.cluster.report(pod, phase="Failed", **status)


def deleted(grace: int | None) -> Act:
    return lambda world, pod: world.server.delete("Pod", pod["metadata"]["name"], grace) and None


def evicted(world: World, pod: Object) -> None:
    world.cluster.disrupt(pod, "EvictionByEvictionAPI")
    world.server.delete("Pod", pod["metadata"]["name"])


def condemned(world: World, pod: Object) -> None:
    """The pod will be deleted for its node's taint."""
    world.cluster.disrupt(pod, "DeletionByTaintManager")


def out_of_service(world: World, pod: Object) -> None:
    world.cluster.dead.add(pod["spec"]["nodeName"])
    world.cluster.taint_node(pod, OUT_OF_SERVICE)


def maintenance(world: World, pod: Object) -> None:
    world.cluster.taint_node(pod)


def node_ready(ready: bool) -> Act:
    return lambda world, pod: world.cluster.ready(pod["spec"]["nodeName"], ready)


def syncer_silent(silent: bool) -> Act:
    return lambda world, _: setattr(world.syncer, "silent", silent)


def all_of(*acts: Act) -> Slow:
    async def act(world: World, pod: Object) -> None:
        for each in acts:
            if (waiting := each(world, pod)) is not None:
                await waiting

    return act


def wait(seconds: float) -> Slow:
    return lambda world, pod: asyncio.sleep(seconds)


def once(check: Callable[[World], bool], first: Act, *acts: Act) -> Slow:
    """The first act, and the others as soon as the check is true."""

    async def act(world: World, pod: Object) -> None:
        await all_of(first)(world, pod)
        await world.until("the first act has its effect", lambda: check(world))
        await all_of(*acts)(world, world.pods(UNIT)[-1])

    return act


def noticed(world: World) -> bool:
    return bool(world.unit(UNIT)["incarnation"] == 2)


def learns_again(world: World) -> bool:
    return learns(world, 2, UNIT)


def restarted(world: World) -> bool:
    """All processes are those of the second incarnation."""
    return [world.cluster.incarnation(pod) for pod in world.pods(UNIT)] == [2, 2]


def at_host_0(act: Act) -> Act:
    return lambda world, _: act(world, world.pods(UNIT)[0])


def says(**words: Any) -> Act:
    """The syncer says this of the unit's first incarnation."""
    return lambda world, _: world.syncer.says.update({(UNIT, 1): words})


stuck, suspect = says(step=0), says(suspect="8 refused")


def apart(incarnation: int) -> Act:
    """The hosts of this incarnation do not connect."""
    return lambda world, _: world.syncer.apart.add((UNIT, incarnation))


def idle(world: World, pod: Object) -> None:
    """The kubelet starts and ends nothing in this pod any more."""
    world.cluster.idle.add(pod["metadata"]["name"])


def asks(**annotations: str) -> Act:
    """A user annotates the unit."""

    told = {f"atoll.dev/{name}": value for name, value in annotations.items()}
    return lambda world, _: world.change("LearnerUnit", UNIT, metadata={"annotations": told}) and None


def node_is(label: str = "", value: str = "", **spec: Any) -> Act:
    """The pod's node has this label and these fields of its spec."""

    def act(world: World, pod: Object) -> None:
        node = world.server.get("Node", pod["spec"]["nodeName"])
        node["metadata"]["labels"] |= {label: value} if label else {}
        world.server.change({**node, "spec": spec})

    return act


def tells(words: str) -> Act:
    """The kubelet tells of an end of the container with this termination message."""
    return lambda world, pod: world.cluster.restart(pod, 1, words)


def restarts(*gaps: float, merged: bool = True) -> Slow:
    """The container fails, and again after each of these times. `merged`: something was merged in between."""

    async def act(world: World, _: Object) -> None:
        for incarnation, gap in enumerate(gaps, 2):
            if not merged:
                world.syncer.says[UNIT, incarnation] = {"state": "Joining"}
            world.cluster.fail_container(world.pods(UNIT)[1])
            await asyncio.sleep(gap)
        world.cluster.fail_container(world.pods(UNIT)[1])

    return act


def busy(world: World, _: Object) -> None:
    world.cluster.idle.clear()


def run_is(**spec: Any) -> Act:
    return lambda world, _: world.change_run(**spec)


NOT_FINITE = "LossNotFinite: loss nan at inner step 7"
REJECTED = fails(reason="UnexpectedAdmissionError", message="no healthy devices present")
SHUT_DOWN = ends("Terminated", "node shutdown")
SPOT, PATIENT, PROMPT = {"capacity": "Spot"}, {"nodeLostSeconds": 3600}, {"hangSeconds": 0}
NOT_READY, READY = node_ready(False), node_ready(True)
CORDONED, LEAVING = node_is(unschedulable=True), node_is(ACTIVE_MAINTENANCE, "ONGOING")
TAKEN = node_is(taints=[{"key": "example.com/taken", "effect": "NoSchedule"}])
PREEMPTED = disrupted("PreemptionByScheduler", message="by p")
CRASH = container_fails(134, "")
DELETED_SLOWLY = all_of(idle, deleted(None), wait(10), busy)
SECOND = str(LastWords(2))
AGAIN: Mapping[str, Any] = {"before": 1, "recovery": PROMPT}
TWICE: Mapping[str, Any] = {"before": 2, "recovery": PROMPT}
ROWS = (
    Row("nothing", lambda world, pod: None, "", "none"),
    Row("exit status", pod_fails(7), "AppError", "pod", "exit status 7", 7),
    Row("exit status of no signal", pod_fails(255), "AppError", "pod", "exit status 255", 255),
    Row("termination message", pod_fails(1, "ValueError: no such shard"), "ValueError", "pod", "no such shard", 1),
    Row("signal", pod_fails(137), "AppError", "pod", "SIGKILL", 137),
    Row("real-time signal", pod_fails(160), "AppError", "pod", "signal 32", 160),
    Row("out of memory", pod_fails(137, "", "OOMKilled"), "OutOfMemory", "pod", "memory", 137),
    Row("exits without an error", pod_fails(0), "UnexpectedExit", "pod", "", 0, after=14),
    Row("leader", at_host_0(pod_fails(7)), "AppError", "leader", "", 7),
    Row("both, and a signal is the cause",
        all_of(pod_fails(137), wait(2), at_host_0(pod_fails(1))), "AppError", "both", "SIGKILL", 137, down=True),
    Row("both, and one was told to end",
        all_of(pod_fails(143), wait(2), at_host_0(pod_fails(7))), "AppError", "both", "status 7", 7, down=True),
    Row("no exit status", fails(), "NodeLost", "gang", "without an exit status"),
    Row("says that it is final", pod_fails(64, NOT_FINITE), "LossNotFinite", "gang", "inner step 7", 64),
    Row("another version", container_fails(EXIT_VERSION, "VersionMismatch: x"), "VersionMismatch", "none",
        charged=False),
    Row("fenced", container_fails(EXIT_FENCED, ""), "Fenced", "gang", "newer incarnation", 65),
    Row("deleted", deleted(None), "PodDeleted", "pod"),
    Row("deleted by force", deleted(0), "PodDeleted", "pod"),
    Row("deleted by force before it has joined", deleted(0), "", "pod", early=True),
    Row("evicted by the API", evicted, "Evicted", "gang", "EvictionByEvictionAPI"),
    Row("evicted by the kubelet", ends("Evicted", "low on memory"), "Evicted", "gang", "low on memory"),
    Row("preempted", PREEMPTED, "Preempted", "gang", "by p", charged=False),
    Row("preempted by the kubelet", fails(reason="Preempting"), "Preempted", "gang", charged=False),
    Row("spot host taken away", SHUT_DOWN, "Preempted", "gang", "node shutdown", charged=False, pool=SPOT),
    Row("spot host, announced", all_of(maintenance, SHUT_DOWN), "HostMaintenance", "gang", "node shutdown",
        charged=False, pool=SPOT, down=True),
    Row("node shut down", SHUT_DOWN, "HostMaintenance", "gang", "node shutdown", charged=False),
    Row("node shut down at once", fails(reason="NodeShutdown"), "HostMaintenance", "gang", charged=False),
    Row("rejected by the kubelet", REJECTED, "AdmissionRejected", "gang", "no healthy devices", charged=False),
    Row("not tolerated", fails(reason="TaintToleration"), "AdmissionRejected", "gang", charged=False),
    Row("no chips", fails(reason="OutOfgoogle.com/tpu"), "AdmissionRejected", "gang", charged=False),
    Row("deleted by the taint manager", disrupted("DeletionByTaintManager"), "NodeLost", "gang", "TaintManager"),
    Row("pod garbage collection", disrupted("DeletionByPodGC"), "NodeLost", "gang"),
    Row("silent node", silent, "NodeLost", "gang", after=3),
    Row("silent node, and by force", silent, "NodeLost", "gang", recovery={"forceDelete": True}),
    Row("silent node, and nobody leads", silent, "NodeLost", "gang", down=True),
    Row("silent node, and patience", silent, "NodeLost", "gang", after=90, recovery={"nodeLostSeconds": 90}),
    Row("silent node of a unit that steps", all_of(NOT_READY, wait(60), READY), "", "none"),
    Row("silent node of a unit that stepped", all_of(NOT_READY, wait(6), stuck), "NodeLost", "gang", after=30),
    Row("silent node, and a container", all_of(at_host_0(silent), container_fails()), "AppError", "gang", down=True),
    Row("node gone", node_gone, "NodeLost", "gang", recovery=PATIENT),
    Row("node out of service", out_of_service, "NodeLost", "gang", recovery=PATIENT),
    Row("node flaps", all_of(*(NOT_READY, wait(4), READY, wait(1)) * 3), "", "none", recovery={"nodeLostSeconds": 6}),
    Row("node cordoned", all_of(CORDONED, wait(5), pod_fails(7)), "AppError", "gang", "", 7),
    Row("node of another host cordoned", all_of(at_host_0(CORDONED), wait(5), pod_fails(7)), "AppError", "gang", "", 7),
    Row("node silent", all_of(silent, pod_fails(7)), "AppError", "gang", "", 7, down=True),
    Row("node leaves", all_of(LEAVING, pod_fails(7)), "AppError", "gang", "", 7, down=True),
    Row("in a queue", pod_fails(7), "AppError", "gang", "", 7, run={"queueName": "team"}),
    Row("of another account", all_of(run_is(serviceAccountName="x"), pod_fails(7)), "AppError", "gang", "", 7,
        down=True),
    Row("in place unwanted", pod_fails(7), "AppError", "gang", "", 7, recovery={"inPlace": False}),
    Row("maintenance", maintenance, "HostMaintenance", "gang", charged=False),
    Row("active maintenance", LEAVING, "HostMaintenance", "gang", charged=False),
    Row("maintenance, and deleted", all_of(maintenance, idle, deleted(None)), "HostMaintenance", "gang", down=True,
        charged=False),
    Row("maintenance, and evicted", all_of(maintenance, idle, evicted), "HostMaintenance", "gang", down=True,
        charged=False),
    Row("drain wanted", asks(drain="1"), "HostMaintenance", "gang", "annotation", charged=False),
    Row("restart wanted", asks(heal="1"), "RestartRequested", "none", "annotation", charged=False),
    Row("another restart wanted", asks(heal="2", drain="0"), "", "none"),
    Row("no restart wanted", asks(heal="", drain="x"), "", "none"),
    Row("container says why", container_fails(1, "OSError: the disk is full"), "OSError", "none", "the disk", 1),
    Row("container, signal", container_fails(139, ""), "AppError", "none", "SIGSEGV", 139),
    Row("container, out of memory", container_fails(137, "", "OOMKilled"), "OutOfMemory", "none", "", 137),
    Row("container, final", container_fails(64, NOT_FINITE), "LossNotFinite", "gang", "inner step 7", 64),
    Row("container, before it begins", tells("OSError: no such file"), "OSError", "gang", "no such file"),
    Row("container, in place unwanted", container_fails(), "AppError", "gang", "", 1, recovery={"inPlace": False}),
    Row("container, on a host that goes", all_of(at_host_0(condemned), container_fails()), "AppError", "gang"),
    Row("both containers, and nobody leads", all_of(at_host_0(CRASH), CRASH), "AppError", "none", down=True),
    Row("both pods", all_of(pod_fails(137), at_host_0(pod_fails(137))), "AppError", "both", "SIGKILL", 137, down=True),
    Row("pod, and nobody leads", pod_fails(137), "AppError", "pod", "SIGKILL", 137, down=True),
    Row("hang", stuck, "Hang", "none", "no step", after=118),
    Row("stuck, and no limit", stuck, "", "none", recovery={"hangSeconds": 0}),
    Row("silent syncer", all_of(syncer_silent(True), wait(200), syncer_silent(False)), "", "none"),
    Row("suspect", suspect, "Suspect", "gang", "8 refused"),
    Row("starts late", all_of(idle, wait(40), busy), "", "none", early=True),
    Row("starts never", idle, "StartupTimedOut", "gang", "others have", early=True, after=58),
    Row("joins never", apart(1), "StartupTimedOut", "none", "not all hosts", early=True, after=58),
    Row("rejoins never", all_of(apart(2), container_fails()), "StartupTimedOut", "gang", "order to restart", after=58,
        **AGAIN),
    Row("does not restart", all_of(at_host_0(idle), container_fails()), "StartupTimedOut", "gang", "still there",
        after=88, **AGAIN),
    Row("host taken", all_of(TAKEN, pod_fails(7)), "CapacityUnavailable", "gang", charged=False, counted=False,
        after=14, **AGAIN),
    Row("old news", once(learns_again, container_fails(), tells(str(LastWords(1)))), "", "none", before=1),
    Row("another pod fails before it restarts", once(noticed, pod_fails(1), at_host_0(pod_fails(7))), "", "both",
        before=1),
    Row("another is deleted before it restarts", once(noticed, pod_fails(1), at_host_0(deleted(None))), "", "both",
        before=1),
    Row("another is gone before it restarts", once(noticed, pod_fails(1), at_host_0(deleted(0))), "", "both", before=1),
    Row("another is evicted before it restarts", once(noticed, pod_fails(1), at_host_0(all_of(idle, evicted))),
        "Evicted", "gang", **AGAIN),
    Row("gone, and in back-off", once(learns_again, pod_fails(1), at_host_0(deleted(0))), "PodDeleted", "both",
        **AGAIN),
    Row("preempted in its back-off, and gone",
        once(learns_again, pod_fails(1), all_of(PREEMPTED, wait(1), at_host_0(CRASH), deleted(0))), "Preempted", "gang",
        charged=False, **AGAIN),
    Row("the new pod fails", once(restarted, pod_fails(1), pod_fails(7, SECOND)), "AppError", "pod", "", 7, **AGAIN),
    Row("another fails when it has restarted", once(restarted, pod_fails(1), at_host_0(pod_fails(7, SECOND))),
        "AppError", "both", "", 7, **AGAIN),
    Row("another is deleted when it has restarted",
        once(restarted, all_of(apart(2), pod_fails(1)), at_host_0(DELETED_SLOWLY)), "PodDeleted", "both", **AGAIN),
    Row("twice without a merge", restarts(700, merged=False), "AppError", "none", **AGAIN),
    Row("thrice without a merge", restarts(700, 700, merged=False), "AppError", "gang", **TWICE),
    Row("thrice with a merge", restarts(700, 700), "AppError", "none", **TWICE),
    Row("thrice, the last two soon", restarts(700, 500), "AppError", "none", **TWICE),
    Row("thrice in 10 minutes", restarts(200, 100), "AppError", "gang", **TWICE),
    Row("thrice, each in 10 minutes", restarts(400, 500), "AppError", "gang", **TWICE),
)  # fmt: skip
BY_NAME = {row.name: row for row in ROWS}
PAGE: dict[str, tuple[str, ...]] = {
    "its pod runs, or waits for a node": ("nothing", "starts late"),
    "(exit status 66)": ("old news",),
    "less than 15 s ago": ("exits without an error",),
    "ended with an error of the current incarnation": ("container says why", "container, signal"),
    "its pod failed, or ended before the run did": ("exit status", "signal", "exits without an error"),
    "its pod is being deleted": ("deleted",),
    "missing, and the hosts have met": ("deleted by force", "gone, and in back-off"),
    "missing, and the hosts have not": ("deleted by force before it has joined", "another is gone before it restarts"),
    "never ran": ("another pod fails before it restarts", "another is deleted before it restarts"),
    "its node is cordoned": ("node cordoned",),
    "its node pool lacks a host": ("node of another host cordoned",),
    "the unit is in a queue": ("in a queue",),
    "made from another image or template": ("of another account",),
    "evicted": ("evicted by the API", "evicted by the kubelet"),
    "turned away": ("rejected by the kubelet", "no chips"),
    "preempted": ("preempted", "preempted in its back-off, and gone"),
    "exit status 64": ("says that it is final", "container, final", "fenced"),
    "before the learner's own code ran": ("container, before it begins",),
    "its node is gone": (
        "node gone", "node out of service", "silent node", "deleted by the taint manager", "no exit status",
    ),
    "silent for less than that": ("node flaps", "silent node", "silent node, and patience"),
    "the node of another host is silent": ("silent node, and a container",),
    "`hangSeconds`": ("hang",),
    "`Suspect`": ("suspect",),
    "after the pods started": ("joins never",),
    "`startupSeconds` after a restart": ("rejoins never",),
    "90 s after a restart": ("does not restart",),
    "and others have": ("starts never",),
    "unschedulable": ("host taken",),
    "about to be taken away": ("maintenance",),
    "without a merge": ("thrice without a merge",),
    "within 10 min": ("thrice in 10 minutes", "thrice, each in 10 minutes"),
    "`recovery.inPlace` is false": ("in place unwanted", "container, in place unwanted"),
    "all pods of a slice failed": ("both pods",),
}  # fmt: skip
"""The rows that play each line of the tables in docs/healing.md, by words of this line alone. A line of which nothing
follows is also played by the time for which a row waits."""


def outcome(name: str) -> list[str]:
    """Play a row with restarts left and without. Return what is wrong."""
    row = BY_NAME[name]
    number, hosts, stays = row.incarnation, HOSTS[row.replaced], row.replaced != "gang"
    healed = {
        "phase": "Learning", "incarnation": number, "told": [number] * 2,
        "restarts": number - 1 - (not row.counted), "reason": row.reason, "exit code": row.exit_code, "words": True,
        "replaced hosts": hosts, "moved": not stays, "in time": True, "witness kept": True, "made alike": True,
        "noted": [stays, len(hosts) * stays] if row.reason and not row.before else None,
    }  # fmt: skip
    ended = {"phase": "Failed" if row.reason and row.charged else "Learning", "reason": row.reason}
    budgets = (1000, row.before + (not row.reason))
    with_budget, without = (played(SEED, partial(_outcome, row=row, budget=each)) for each in budgets)
    found = {key: without[key] for key in ended}
    return [
        *differences(healed, with_budget, "restarts left"),
        *differences(ended, found, "no restarts left"),
    ]


def begin(world: World, row: Row | None = None, **recovery: Any) -> None:
    """A run of two units: one of two hosts, and its witness."""
    [one, two] = SPEC["pools"]
    pools, run = [one, {**two, "units": 1, **(row.pool if row else {})}], row.run if row else {}
    world.begin(pools=pools, recovery={**SPEC["recovery"], **recovery}, **run)


def learns(world: World, incarnation: int, *units: str) -> bool:
    found = [world.unit(name) for name in units]
    return all((each.get("phase"), each.get("incarnation")) == ("Learning", incarnation) for each in found)


async def until_learns(world: World, incarnation: int, *units: str, seconds: float = 600.0) -> None:
    await world.until("they learn", lambda: learns(world, incarnation, *units), seconds)


async def _outcome(world: World, row: Row, budget: int) -> dict[str, Any]:
    begin(world, row, **{"maxRestarts": budget, **row.recovery})
    if row.early:
        await world.until(
            "all have nodes", lambda: sum("nodeName" in pod["spec"] for pod in world.pods()) == 3
        )
    else:
        await until_learns(world, 1, UNIT, WITNESS)
    before, witness = world.pods(UNIT), world.uids(WITNESS)
    began = asyncio.get_running_loop().time()
    if row.down:
        world.stop()
    await all_of(row.act)(world, before[1])
    await asyncio.sleep(10.0 * row.down)
    if row.down:
        world.operate()
    seconds = row.after
    if row.reason:
        await world.until("it is noticed", lambda: _is_noticed(world, row), LONGEST_SECONDS)
        seconds = asyncio.get_running_loop().time() - began
        await world.until("it heals or fails", lambda: _is_over(world, row), LONGEST_SECONDS)
    else:
        await asyncio.sleep(300.0)
    await asyncio.sleep(CALM_SECONDS)
    status, after = world.unit(UNIT), world.pods(UNIT)
    failure, uids = status.get("lastFailure", {}), {pod["metadata"]["uid"] for pod in after}
    reason = failure.get("reason", "") if row.counted else status["restarts"][-1]["reason"]
    last = status["restarts"][-1] if status["restarts"] and row.reason and not row.before else None
    return {
        "noted": [last["inPlace"], last["replaced"]] if last else None,
        "phase": status["phase"],
        "incarnation": status["incarnation"],
        "told": [int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION]) for pod in after],
        "restarts": status["restartCount"],
        "reason": reason if row.reason else "",
        "exit code": failure.get("exitCode") if row.exit_code is not None else None,
        "words": row.words in failure.get("message", "") or failure.get("message"),
        "replaced hosts": [host for host, pod in enumerate(before) if pod["metadata"]["uid"] not in uids],
        "moved": status["placement"] > 1,
        "in time": not row.after or row.after <= seconds <= row.after + LATE_SECONDS or seconds,
        "made alike": status["placement"] > 1 or _differences(before, after) or True,
        "witness kept": world.uids(WITNESS) == witness and world.unit(WITNESS)["incarnation"] == 1,
    }


def _differences(before: list[Object], after: list[Object]) -> list[str]:
    """How pods on the same hosts differ in what their peers and processes know. A follower need not hold its pool."""
    return list(differences(*(dict(map(_made, pods)) for pods in (before, after))))


def _made(pod: Object) -> tuple[str, Object]:
    labels, spec = {**pod["metadata"]["labels"]}, pod["spec"]
    if (host := labels[LABEL_HOST]) != "0":
        labels.pop(LABEL_HOLDS, None)
    place = spec["nodeName"].rpartition("-")[0]
    return host, {"labels": labels, "place": place} | {
        k: spec[k] for k in ("hostname", "subdomain", "containers")
    }


def _is_noticed(world: World, row: Row) -> bool:
    status = world.unit(UNIT)
    draining = world.condition(UNIT, "Draining")[0] == "True"
    return bool(status["phase"] == "Failed" or status["incarnation"] == row.incarnation or draining)


def _is_over(world: World, row: Row) -> bool:
    status = world.unit(UNIT)
    return bool(status["phase"] == "Failed" or learns(world, row.incarnation, UNIT))
