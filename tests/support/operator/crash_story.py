"""What happens to a run whose operator is killed at each of its writes, in chapters in the world in memory.

Each chapter begins where the last one ended. A unit fails once and no more, or it would wait for its back-off.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from memory_world import SPEC, World

from atoll_operator.certificates.authority import Authorities, Authority
from atoll_operator.plan.nodes import OUT_OF_SERVICE


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happens to a run."""

    name: str
    act: Callable[[World], Awaitable[None] | None]
    done: Callable[[World], bool]
    """Whether the operator has done all that has to follow."""


def condition(world: World, name: str) -> str:
    """Its status; empty where the run has no such condition."""
    return world.condition("TrainingRun", "r", name)[0]


def names(world: World, *kinds: str) -> set[str]:
    return {key.name for key in world.server.objects if key.kind in kinds}


def resize(world: World, units: int) -> None:
    """The second pool."""
    [one, two] = world.server.get("TrainingRun", "r")["spec"]["pools"]
    world.change_run(pools=[one, {**two, "units": units}])


def all_learn(world: World, count: int, *restarts: str) -> bool:
    """So many units are there and learn, and exactly these were restarted, once."""
    units = list(world.server.every("LearnerUnit"))
    counts = {unit["metadata"]["name"]: unit["status"]["restartCount"] for unit in units if "status" in unit}
    return world.run().get("unitsSummary") == f"{count}/{count}" and counts == {
        name: int(name in restarts) for name in counts
    }


def create(world: World) -> None:
    world.syncer.finished = False
    world.cluster.mend_nodes()
    pools = [{**pool, "units": 1} for pool in SPEC["pools"]]
    recovery = {**SPEC["recovery"], "maxRestarts": 1, "forceDelete": True}
    world.create_run(pools=pools, recovery=recovery)


def lose_pod(world: World) -> None:
    world.server.delete("Pod", world.pods("r-two-1")[1]["metadata"]["name"])


def rolled(world: World) -> bool:
    images = {pod["spec"]["containers"][0]["image"] for pod in world.pods()}
    return images == {"image:new"} and world.run().get("unitsUpdated") == 2


def suspended(world: World) -> bool:
    replicas = world.server.get("StatefulSet", "r-syncer")["spec"]["replicas"]
    return condition(world, "Suspended") == "True" and not names(world, "Pod") and replicas == 0


def shrunk(world: World) -> bool:
    return "r-two-1-tls" not in names(world, "Secret") and not world.pods("r-two-1")


def other_shards(count: int) -> Chapter:
    """In a suspended run, whose state is in the bucket."""
    return Chapter(
        f"shards: {count}",
        lambda world: world.change_run(syncer={"shards": count}),
        lambda world: world.run().get("syncerShards") == count,
    )


def age_authority(world: World) -> None:
    """Beside the authority that signed what is in use there is one that is near its end."""
    secret = world.server.get("Secret", "r-ca")
    [young] = Authorities.load(*(base64.b64decode(secret["data"][key]) for key in ("ca.crt", "ca.key")))
    old = Authority.new("r", datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=800))
    both = Authorities([young, old], old)
    change = {"ca.crt": both.bundle, "ca.key": both.keys}
    encoded = {key: base64.b64encode(value).decode() for key, value in change.items()}
    world.server.change({**secret, "data": {**secret["data"], **encoded}})


def followed(world: World) -> bool:
    """There is a third authority, and everybody knows it."""
    bundles = {base64.b64decode(secret["data"]["ca.crt"]) for secret in world.server.every("Secret")}
    return {bundle.count(b"BEGIN") for bundle in bundles} == {3}


def not_evaluated(world: World) -> bool:
    left = names(world, "StatefulSet", "Service")
    return "r-evaluator" not in left and condition(world, "Evaluated") == ""


def given_up(world: World) -> bool:
    phase = world.server.get("LearnerUnit", "r-one-0")["status"]["phase"]
    return phase == "Failed" and not world.pods("r-one-0") and world.run()["unitsSummary"] == "1/2"


def emptied(world: World) -> bool:
    left = {"r-one-0-tls", "r-two-0-tls"} & names(world, "Secret") or names(world, "LearnerUnit")
    return not left and not world.pods() and condition(world, "Progressing") == "False"


def lose_node(world: World) -> None:
    pod = world.pods("r-two-0")[1]
    world.cluster.dead.add(pod["spec"]["nodeName"])
    world.cluster.taint_node(pod, OUT_OF_SERVICE)


def finish(world: World) -> None:
    world.syncer.finished = True


def finished(world: World) -> bool:
    return condition(world, "Complete") == "True" and not names(world, "Pod", "StatefulSet")


async def create_and_delete(world: World) -> None:
    create(world)
    while len(world.pods()) < 3:
        await asyncio.sleep(0.05)
    world.server.delete("TrainingRun", "r")


def gone(world: World) -> bool:
    return not names(world, "TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Secret")


BOTH = ("r-one-0", "r-two-0")
ALL = (*BOTH, "r-two-1")
STORY = (
    Chapter("create", create, lambda world: all_learn(world, 2)),
    Chapter(
        "a pod fails",
        lambda world: world.cluster.fail_pod(world.pods("r-one-0")[0], 137),
        lambda world: all_learn(world, 2, "r-one-0"),
    ),
    Chapter(
        "a container fails",
        lambda world: world.cluster.fail_container(world.pods("r-two-0")[1]),
        lambda world: all_learn(world, 2, *BOTH),
    ),
    Chapter(
        "a new image",
        lambda world: world.change_run(image="image:new"),
        lambda world: rolled(world) and all_learn(world, 2, *BOTH),
    ),
    Chapter("one unit more", lambda world: resize(world, 2), lambda world: all_learn(world, 3, *BOTH)),
    Chapter("a pod is lost", lose_pod, lambda world: all_learn(world, 3, *ALL)),
    Chapter("suspend", lambda world: world.change_run(suspend=True), suspended),
    other_shards(2),
    other_shards(1),
    Chapter("resume", lambda world: world.change_run(suspend=False), lambda world: all_learn(world, 3, *ALL)),
    Chapter(
        "one unit less",
        lambda world: resize(world, 1),
        lambda world: shrunk(world) and all_learn(world, 2, *BOTH),
    ),
    Chapter("an authority is due", age_authority, followed),
    Chapter(
        "an evaluator",
        lambda world: world.change_run(evaluation={"tokens": 4096}),
        lambda world: condition(world, "Evaluated") == "True",
    ),
    Chapter("no evaluator", lambda world: world.change_run(evaluation=None), not_evaluated),
    Chapter(
        "a unit is out of restarts",
        lambda world: world.cluster.fail_container(world.pods("r-one-0")[0]),
        given_up,
    ),
    Chapter("no units", lambda world: world.change_run(units=0), emptied),
    Chapter(
        "units in a queue",
        lambda world: world.change_run(units=None, queueName="team"),
        lambda world: all_learn(world, 2),
    ),
    Chapter(
        "maintenance",
        lambda world: world.cluster.taint_node(world.pods("r-one-0")[0]),
        lambda world: all_learn(world, 2, "r-one-0"),
    ),
    Chapter("a node is lost", lose_node, lambda world: all_learn(world, 2, *BOTH) and len(world.pods()) == 3),
    Chapter("finish", finish, finished),
    Chapter("its time to live ends", lambda world: world.change_run(ttlSecondsAfterFinished=0), gone),
    Chapter("create and delete", create_and_delete, gone),
)
