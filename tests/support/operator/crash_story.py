"""What happens to a run whose operator is killed at each of its writes, in chapters in the world in memory.

Each chapter begins where the last one ended. A unit fails once and no more, or it would wait for its back-off.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cryptography import x509
from memory_failures import Act, container_fails, deleted, maintenance, out_of_service, pod_fails
from memory_world import SPEC, World

from atoll_operator.api.common import EVALUATED
from atoll_operator.certificates.authority import AUTHORITY_LIFE, Authority

Do, Done = Callable[[World], Awaitable[None] | None], Callable[[World], bool]


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happens to a run."""

    name: str
    act: Do
    done: Done
    """Whether the operator has done all that has to follow."""


def condition(world: World, name: str) -> str:
    """Its status; empty where the run has no such condition."""
    return world.condition("TrainingRun", "r", name)[0]


def names(world: World, *kinds: str) -> set[str]:
    return {key.name for key in world.server.objects if key.kind in kinds}


def all_learn(world: World, count: int, *restarts: str) -> bool:
    """So many units are there and learn, and exactly these were restarted, once."""
    units = list(world.server.every("LearnerUnit"))
    counts = {unit["metadata"]["name"]: unit["status"]["restartCount"] for unit in units if "status" in unit}
    return world.run().get("unitsSummary") == f"{count}/{count}" and counts == {
        name: int(name in restarts) for name in counts
    }


def learn(count: int, *restarts: str) -> Done:
    return lambda world: all_learn(world, count, *restarts)


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


def rolled(world: World) -> bool:
    images = {pod["spec"]["containers"][0]["image"] for pod in world.pods()}
    updated = world.run().get("unitsUpdated") == 2
    return images == {"image:new"} and updated and all_learn(world, 2, *BOTH)


def suspended(world: World) -> bool:
    replicas = world.server.get("StatefulSet", "r-syncer")["spec"]["replicas"]
    return condition(world, "Suspended") == "True" and not names(world, "Pod") and replicas == 0


def journals(shards: int, folder: str) -> Done:
    """So many shards, with a journal of their own: none of another number of shards is read again."""

    def done(world: World) -> bool:
        syncer = world.server.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"]["containers"][0]
        [path] = (each["value"] for each in syncer["env"] if each["name"] == "ATOLL_JOURNAL_DIR")
        return world.run().get("syncerShards") == shards and path.endswith(f"/{folder}")

    return done


def shrunk(world: World) -> bool:
    left = "r-two-1-tls" in names(world, "Secret") or world.pods("r-two-1")
    return not left and all_learn(world, 2, *BOTH)


def age_authority(world: World) -> None:
    """The authority is near its end."""
    secret = world.server.get("Secret", "r-ca")
    old = Authority.new("r", datetime.datetime.now(datetime.UTC) - 3 * AUTHORITY_LIFE / 4).pair
    change = {"ca.crt": old.certificate, "ca.key": old.key}
    encoded = {key: base64.b64encode(value).decode() for key, value in change.items()}
    world.server.change({**secret, "data": {**secret["data"], **encoded}})


def followed(world: World) -> bool:
    """There is a young authority, and everybody knows it."""
    bundles = {base64.b64decode(secret["data"]["ca.crt"]) for secret in world.server.every("Secret")}
    begun = [x509.load_pem_x509_certificate(bundle).not_valid_before_utc for bundle in bundles]
    return len(begun) == 1 and datetime.datetime.now(datetime.UTC) - begun[0] < AUTHORITY_LIFE / 4


def not_evaluated(world: World) -> bool:
    left = names(world, "StatefulSet", "Service")
    return "r-evaluator" not in left and condition(world, EVALUATED) == ""


def given_up(world: World) -> bool:
    phase = world.server.get("LearnerUnit", "r-one-0")["status"]["phase"]
    return phase == "Failed" and not world.pods("r-one-0") and world.run()["unitsSummary"] == "1/2"


def emptied(world: World) -> bool:
    left = {"r-one-0-tls", "r-two-0-tls"} & names(world, "Secret") or names(world, "LearnerUnit")
    return not left and not world.pods() and condition(world, "Progressing") == "False"


def lose_slice(world: World) -> None:
    """With all its nodes: a gang in a queue may come back to a pool that lacks but one, and has to move once more."""
    for pod in world.pods("r-two-0"):
        out_of_service(world, pod)


def moved(world: World) -> bool:
    return all_learn(world, 2, *BOTH) and len(world.pods()) == 3


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
    Chapter("create", create, learn(2)),
    Chapter("a pod fails", at("r-one-0", 0, pod_fails(137)), learn(2, "r-one-0")),
    Chapter("a container fails", at("r-two-0", 1, container_fails()), learn(2, *BOTH)),
    Chapter("a new image", change(image="image:new"), rolled),
    Chapter("one unit more", lambda world: world.resize(1), learn(3, *BOTH)),
    Chapter("a pod is lost", at("r-two-1", 1, deleted(None)), learn(3, *ALL)),
    Chapter("suspend", change(suspend=True), suspended),
    # In a suspended run, whose state is in the bucket.
    Chapter("two shards", change(syncer={"shards": 2}), journals(2, "layout-1")),
    Chapter("one shard", change(syncer={"shards": 1}), journals(1, "layout-2")),
    Chapter("resume", change(suspend=False), learn(3, *ALL)),
    Chapter("one unit less", lambda world: world.resize(-1), shrunk),
    Chapter("an authority is due", age_authority, followed),
    Chapter(
        "an evaluator",
        change(evaluation={"tokens": 4096}),
        lambda world: condition(world, EVALUATED) == "True",
    ),
    Chapter("no evaluator", change(evaluation=None), not_evaluated),
    Chapter("a unit is out of restarts", at("r-one-0", 0, container_fails()), given_up),
    Chapter("no units", change(units=0), emptied),
    Chapter("units in a queue", change(units=None, queueName="team"), learn(2)),
    Chapter("maintenance", at("r-one-0", 0, maintenance), learn(2, "r-one-0")),
    Chapter("a slice is lost", lose_slice, moved),
    Chapter("finish", lambda world: setattr(world.syncer, "finished", True), finished),
    Chapter("its time to live ends", change(ttlSecondsAfterFinished=0), gone),
    Chapter("create and delete", create_and_delete, gone),
)
