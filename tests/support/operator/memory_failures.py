"""A table of all ways in which a unit fails, played in the memory world. In each row something happens to the pod of
host 1 of `r-two-0`, a unit of two hosts. The other unit of the run, the witness, must not be affected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from memory_apiserver import Object
from memory_world import SPEC, World, played
from worldview import differences

from atoll_operator.api.group import ANNOTATION_INCARNATION
from atoll_operator.plan.nodes import OUT_OF_SERVICE

SEED = 20261124
UNIT, WITNESS = "r-two-0", "r-one-0"
LONGEST_SECONDS = 900.0
CALM_SECONDS = 30.0
"""Seconds after the end of a row in which nothing more may happen."""
Act = Callable[[World, Object], None]
Replaced = Literal["none", "pod", "gang"]
HOSTS: Mapping[Replaced, list[int]] = {"none": [], "pod": [1], "gang": [0, 1]}


@dataclass(frozen=True, slots=True)
class Row:
    """What happens, and what must follow."""

    name: str
    act: Act
    reason: str
    """The reason of `lastFailure`; empty if nothing may follow."""
    replaced: Replaced
    """The pods that are replaced. The others keep their uids."""
    words: str = ""
    """Part of the failure's message."""
    exit_code: int | None = None
    charged: bool = True
    """Whether a unit without restarts left fails by this."""
    down: bool = False
    """Whether the operator is down while it happens."""
    recovery: Mapping[str, Any] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)


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


def out_of_service(world: World, pod: Object) -> None:
    world.cluster.dead.add(pod["spec"]["nodeName"])
    world.cluster.taint_node(pod, OUT_OF_SERVICE)


def maintenance(world: World, pod: Object) -> None:
    world.cluster.taint_node(pod)


def flaps(world: World, pod: Object) -> None:
    """The node is silent three times, each time for less than `nodeLostSeconds`."""

    async def flap() -> None:
        for _ in range(3):
            world.cluster.ready(pod["spec"]["nodeName"], False)
            await asyncio.sleep(4.0)
            world.cluster.ready(pod["spec"]["nodeName"], True)
            await asyncio.sleep(1.0)

    world.accompany(flap())


def syncer_is_silent(world: World, _: Object) -> None:
    """The syncer is silent for longer than `hangSeconds`."""

    async def silence() -> None:
        world.syncer.silent = True
        await asyncio.sleep(200.0)
        world.syncer.silent = False

    world.accompany(silence())


def both_containers_fail(world: World, pod: Object) -> None:
    for each in world.pods(UNIT):
        world.cluster.fail_container(each, 134, "")


def crash_on_a_host_that_goes(world: World, pod: Object) -> None:
    [first, _] = world.pods(UNIT)
    world.cluster.disrupt(first, "DeletionByTaintManager")
    world.cluster.fail_container(pod)


def stuck(world: World, _: Object) -> None:
    world.syncer.stuck.add((UNIT, 1))


NOT_FINITE = "LossNotFinite: loss nan at inner step 7"
REJECTED = fails(reason="UnexpectedAdmissionError", message="no healthy devices present")
SHUT_DOWN = ends("Terminated", "node shutdown")
SPOT, PATIENT = {"capacity": "Spot"}, {"nodeLostSeconds": 3600}
ROWS = (
    Row("exit status", pod_fails(7), "AppError", "pod", "exit status 7", 7),
    Row("termination message", pod_fails(1, "ValueError: no such shard"), "ValueError", "pod", "no such shard", 1),
    Row("signal", pod_fails(137), "AppError", "pod", "SIGKILL", 137),
    Row("out of memory", pod_fails(137, "", "OOMKilled"), "OutOfMemory", "pod", "memory", 137),
    Row("exits without an error", pod_fails(0), "UnexpectedExit", "pod", "", 0),
    Row("says that it is final", pod_fails(64, NOT_FINITE), "LossNotFinite", "gang", "inner step 7", 64),
    Row("deleted", deleted(None), "PodDeleted", "pod"),
    Row("deleted by force", deleted(0), "PodDeleted", "pod"),
    Row("evicted by the API", evicted, "Evicted", "gang", "EvictionByEvictionAPI"),
    Row("evicted by the kubelet", ends("Evicted", "low on memory"), "Evicted", "gang", "low on memory"),
    Row("preempted", disrupted("PreemptionByScheduler", message="by p"), "Preempted", "gang", "by p", charged=False),
    Row("spot host taken away", SHUT_DOWN, "Preempted", "gang", "node shutdown", charged=False, pool=SPOT),
    Row("node shut down", SHUT_DOWN, "HostMaintenance", "gang", "node shutdown", charged=False),
    Row("rejected by the kubelet", REJECTED, "AdmissionRejected", "gang", "no healthy devices", charged=False),
    Row("deleted by the taint manager", disrupted("DeletionByTaintManager"), "NodeLost", "gang", "TaintManager"),
    Row("pod garbage collection", disrupted("DeletionByPodGC"), "NodeLost", "gang"),
    Row("silent node", silent, "NodeLost", "gang"),
    Row("silent node, and by force", silent, "NodeLost", "gang", recovery={"forceDelete": True}),
    Row("silent node, and nobody leads", silent, "NodeLost", "gang", down=True),
    Row("node gone", node_gone, "NodeLost", "gang", recovery=PATIENT),
    Row("node out of service", out_of_service, "NodeLost", "gang", recovery=PATIENT),
    Row("node flaps", flaps, "", "none", recovery={"nodeLostSeconds": 6}),
    Row("maintenance", maintenance, "HostMaintenance", "gang", charged=False),
    Row("container says why", container_fails(1, "OSError: the disk is full"), "OSError", "none", "the disk", 1),
    Row("container, signal", container_fails(139, ""), "AppError", "none", "SIGSEGV", 139),
    Row("container, out of memory", container_fails(137, "", "OOMKilled"), "OutOfMemory", "none", "", 137),
    Row("container, final", container_fails(64, NOT_FINITE), "LossNotFinite", "gang", "inner step 7", 64),
    Row("container, in place unwanted", container_fails(), "AppError", "gang", "", 1, recovery={"inPlace": False}),
    Row("container, on a host that goes", crash_on_a_host_that_goes, "AppError", "gang"),
    Row("both containers, and nobody leads", both_containers_fail, "AppError", "none", down=True),
    Row("pod, and nobody leads", pod_fails(137), "AppError", "pod", "SIGKILL", 137, down=True),
    Row("hang", stuck, "Hang", "none", "no step"),
    Row("silent syncer", syncer_is_silent, "", "none"),
)  # fmt: skip
BY_NAME = {row.name: row for row in ROWS}


def outcome(name: str) -> list[str]:
    """Play a row with restarts left and without. Return what is wrong."""
    row = BY_NAME[name]
    incarnation = 2 if row.reason else 1
    healed = {
        "phase": "Learning", "incarnation": incarnation, "told": [incarnation] * 2, "restarts": incarnation - 1,
        "reason": row.reason, "exit code": row.exit_code, "words": True, "replaced hosts": HOSTS[row.replaced],
        "witness kept": True,
    }  # fmt: skip
    ended = {"phase": "Failed" if row.reason and row.charged else "Learning", "reason": row.reason}
    with_budget, without = (played(SEED, partial(_outcome, row=row, budget=each)) for each in (1000, 0))
    found = {key: without[key] for key in ended}
    return [
        *differences(healed, with_budget, "restarts left"),
        *differences(ended, found, "no restarts left"),
    ]


def begin(world: World, pool: Mapping[str, Any] = MappingProxyType({}), **recovery: Any) -> None:
    """A run of two units: one of two hosts, and its witness."""
    [one, two] = SPEC["pools"]
    pools = [one, {**two, "units": 1, **pool}]
    world.begin(pools=pools, recovery={**SPEC["recovery"], **recovery})


async def _outcome(world: World, row: Row, budget: int) -> dict[str, Any]:
    begin(world, row.pool, **{"maxRestarts": budget, **row.recovery})
    learning = lambda: {world.unit(name).get("phase") for name in (UNIT, WITNESS)} == {"Learning"}  # noqa: E731
    await world.until("all learn", learning)
    before, witness = world.uids(UNIT), world.uids(WITNESS)
    if row.down:
        world.stop()
    row.act(world, world.pods(UNIT)[1])
    await asyncio.sleep(10.0)
    if row.down:
        world.operate()
    if row.reason:
        await world.until("it heals or fails", lambda: _is_over(world), LONGEST_SECONDS)
    else:
        await asyncio.sleep(300.0)
    await asyncio.sleep(CALM_SECONDS)
    status, after = world.unit(UNIT), world.uids(UNIT)
    failure = status.get("lastFailure", {})
    return {
        "phase": status["phase"],
        "incarnation": status["incarnation"],
        "told": [int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION]) for pod in world.pods(UNIT)],
        "restarts": status["restartCount"],
        "reason": failure.get("reason", ""),
        "exit code": failure.get("exitCode") if row.exit_code is not None else None,
        "words": row.words in failure.get("message", "") or failure.get("message"),
        "replaced hosts": [host for host, uid in enumerate(before) if uid not in after],
        "witness kept": world.uids(WITNESS) == witness and world.unit(WITNESS)["incarnation"] == 1,
    }


def _is_over(world: World) -> bool:
    status = world.unit(UNIT)
    return status["phase"] == "Failed" or (status["phase"] == "Learning" and status["incarnation"] > 1)
