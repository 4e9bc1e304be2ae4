"""The story, in chapters, of a run in the memory world. The operator is killed at each of its writes. Each chapter
begins where the last one ended. A unit fails only once, because otherwise it would wait for its back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from memory_apiserver import Object
from memory_failures import Act, container_fails, deleted, maintenance, out_of_service, pod_fails
from memory_world import SPEC, World

Do = Callable[[World], Awaitable[None] | None]
KINDS = (
    "TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Service", "ConfigMap", "Secret", "PodDisruptionBudget",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happens to a run."""

    name: str
    act: Do
    end: Object
    """The `facts` that show that the operator has done all that has to follow."""

    def done(self, world: World) -> bool:
        found = facts(world)
        return all(found.get(name) == value for name, value in self.end.items())


def facts(world: World) -> Object:
    """Names by kind, conditions, and other facts about run, units and syncer, without times and figures."""
    names = {kind: {key.name for key in world.server.objects if key.kind == kind} for kind in KINDS}
    status = {key.name: world.server.objects[key].get("status", {}) for key in world.planned()}
    run, units = status.pop("r", {}), status
    syncers = [body for body in world.server.every("StatefulSet") if body["metadata"]["name"] == "r-syncer"]
    found: Object = {
        **names, **{each["type"]: each["status"] for each in run.get("conditions", ())},
        "units": run.get("unitsSummary"), "updated": run.get("unitsUpdated"), "shards": run.get("syncerShards"),
        "restarts": {name: unit["restartCount"] for name, unit in units.items() if unit.get("restartCount")},
        "failed": {name for name, unit in units.items() if unit.get("phase") == "Failed"},
        "unit conditions": {
            name: {(each["type"], each["status"], each["reason"]) for each in unit.get("conditions", ())}
            for name, unit in units.items()
        },
        "incarnations": {name: (unit.get("incarnation"), unit.get("placement")) for name, unit in units.items()},
        "authorities": len({secret["data"].get("ca.crt") for secret in world.server.every("Secret")}),
        "data": {body["metadata"]["name"]: body["data"] for body in world.server.every("ConfigMap")},
        "unit specs": {body["metadata"]["name"]: body["spec"] for body in world.server.every("LearnerUnit")},
        "learners": len(world.pods()),
        "images": {pod["spec"]["containers"][0]["image"] for pod in world.pods()},
    }  # fmt: skip
    for body in syncers:
        [main] = body["spec"]["template"]["spec"]["containers"]
        [path] = (each["value"] for each in main["env"] if each["name"] == "ATOLL_JOURNAL_DIR")
        found |= {"replicas": body["spec"]["replicas"], "journal": path.rpartition("/")[2]}
    return found


def learn(count: int, *restarts: str, **more: object) -> Object:
    """Facts that `count` units exist and learn, and that exactly `restarts` were restarted, each once."""
    return {"units": f"{count}/{count}", "restarts": dict.fromkeys(restarts, 1), **more}


def change(**spec: object) -> Do:
    return lambda world: world.change_run(**spec)


def at(unit: str, host: int, act: Act) -> Do:
    return lambda world: act(world, world.pods(unit)[host])


def create(world: World) -> None:
    world.syncer.finished = False
    world.cluster.mend_nodes()
    pools = [{**pool, "units": 1} for pool in SPEC["pools"]]
    recovery = {**SPEC["recovery"], "maxRestarts": 1, "forceDelete": True}
    world.create_run(pools=pools, recovery=recovery)


def lose_slice(world: World) -> None:
    """Lose a slice with all its nodes. If only one were lost, a gang in a queue might come back to the same pool and
    have to move once more."""
    for pod in world.pods("r-two-0"):
        out_of_service(world, pod)


def finish(world: World) -> None:
    world.syncer.finished = True


async def create_and_delete(world: World) -> None:
    create(world)
    while len(world.pods()) < 3:
        await asyncio.sleep(0.05)
    world.server.delete("TrainingRun", "r")


BOTH = ("r-one-0", "r-two-0")
ALL = (*BOTH, "r-two-1")
OF_RUN = {"r-ca", "r-syncer-tls", "r-evaluator-tls"}
OF_TWO = {"r-ca", "r-syncer-tls", "r-one-0-tls", "r-two-0-tls"}
NONE: set[str] = set()
NOT_EVALUATED = {"Evaluated": None, "StatefulSet": {"r-syncer"}, "Service": {"r-syncer", *BOTH}}
EMPTY = {"Progressing": "False", "LearnerUnit": NONE, "learners": 0, "Secret": OF_RUN}
GONE = dict.fromkeys(KINDS, NONE)
STORY = (
    Chapter("create", create, learn(2)),
    Chapter("a pod fails", at("r-one-0", 0, pod_fails(137)), learn(2, "r-one-0")),
    Chapter("a container fails", at("r-two-0", 1, container_fails()), learn(2, *BOTH)),
    Chapter("a new image", change(image="image:new"), learn(2, *BOTH, updated=2, images={"image:new"})),
    Chapter("one unit more", lambda world: world.resize(1), learn(3, *BOTH)),
    Chapter("a pod is lost", at("r-two-1", 1, deleted(None)), learn(3, *ALL)),
    Chapter("suspend", change(suspend=True), {"Suspended": "True", "Pod": NONE, "replicas": 0}),
    # In a suspended run, which has its state in the bucket. No journal of another number of shards is read again.
    Chapter("two shards", change(syncer={"shards": 2}), {"shards": 2, "journal": "layout-1"}),
    Chapter("one shard", change(syncer={"shards": 1}), {"shards": 1, "journal": "layout-2"}),
    Chapter("resume", change(suspend=False), learn(3, *ALL)),
    Chapter("one unit less", lambda world: world.resize(-1), learn(2, *BOTH, learners=3, Secret=OF_TWO)),
    Chapter("an evaluator", change(evaluation={"tokens": 4096}), {"Evaluated": "True"}),
    Chapter("no evaluator", change(evaluation=None), NOT_EVALUATED),
    Chapter("out of restarts", at("r-one-0", 0, container_fails()), {"failed": {"r-one-0"}, "learners": 2}),
    Chapter("no units", change(units=0), EMPTY),
    Chapter("units in a queue", change(units=None, queueName="team"), learn(2)),
    Chapter("maintenance", at("r-one-0", 0, maintenance), learn(2, "r-one-0")),
    Chapter("a slice is lost", lose_slice, learn(2, *BOTH, learners=3)),
    Chapter("finish", finish, {"Complete": "True", "Pod": NONE, "StatefulSet": NONE}),
    Chapter("its time to live ends", change(ttlSecondsAfterFinished=0), GONE),
    Chapter("create and delete", create_and_delete, GONE),
)  # fmt: skip
