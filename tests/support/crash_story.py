"""What happens to a run whose operator dies again and again, in chapters: each goes on where the last one ended.

A unit fails once and no more, or it would wait for its back-off; those that are made again begin anew.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crash_world import World

from atoll_operator.certificates.authority import Authorities, Authority
from atoll_operator.plan.nodes import IMPENDING_TERMINATION, OUT_OF_SERVICE


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happens to a run."""

    name: str
    act: Callable[[World], None]
    done: Callable[[World], bool]
    """Whether all that has to come of it has come."""


def status(world: World) -> dict[str, Any]:
    return dict(world.get("TrainingRun", "r").get("status", {}))


def condition(world: World, name: str) -> str:
    return str(world.bench.condition("TrainingRun", "r", name)[0])


def pools(world: World, **units: int) -> list[dict[str, Any]]:
    known = world.get("TrainingRun", "r")["spec"]["pools"]
    return [{**pool, "units": units.get(pool["name"], pool["units"])} for pool in known]


def all_learn(world: World, count: int, *restarts: str) -> bool:
    """So many units are there and learn, and exactly these were restarted, once."""
    units = world.api.list("LearnerUnit", world.namespace)
    counts = {unit["metadata"]["name"]: unit["status"]["restartCount"] for unit in units if "status" in unit}
    return status(world).get("unitsSummary") == f"{count}/{count}" and counts == {
        name: int(name in restarts) for name in counts
    }


def create(world: World) -> None:
    world.cast.syncer.clear()
    world.mend_nodes()
    world.bench.run(units=1, recovery={"maxRestarts": 1, "forceDelete": True})


def fail_pod(world: World) -> None:
    world.bench.kubelet.fail(world.namespace, world.pod("r-one-0", 0), 137)


def fail_container(world: World) -> None:
    world.cast.end_container(world.pod("r-two-0", 1), 1, "AppError: broken")


def lose_pod(world: World) -> None:
    world.api.delete("Pod", world.namespace, world.pod("r-two-1", 1))


def rolled(world: World) -> bool:
    images = {pod["spec"]["containers"][0]["image"] for pod in world.bench.pods().values()}
    return images == {"atoll.dev/runtime:new"} and status(world).get("unitsUpdated") == 2


def suspended(world: World) -> bool:
    replicas = world.get("StatefulSet", "r-syncer")["spec"]["replicas"]
    return condition(world, "Suspended") == "True" and not world.bench.pods() and replicas == 0


def shrunk(world: World) -> bool:
    return "r-two-1-tls" not in world.names("Secret") and not world.bench.pods("r-two-1")


def other_shards(count: int) -> Chapter:
    """In a suspended run; what it goes on from is in the bucket."""
    return Chapter(
        f"shards: {count}",
        lambda world: world.change(syncer={"shards": count}),
        lambda world: status(world).get("syncerShards") == count,
    )


def age_authority(world: World) -> None:
    """Beside the authority that signed what is in use there is one that is near its end."""
    data = world.get("Secret", "r-ca")["data"]
    [young] = Authorities.load(*(base64.b64decode(data[key]) for key in ("ca.crt", "ca.key")))
    old = Authority.new("r", datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=800))
    both = Authorities([young, old], old)
    change = {"ca.crt": both.bundle, "ca.key": both.keys}
    encoded = {key: base64.b64encode(value).decode() for key, value in change.items()}
    world.api.patch("Secret", world.namespace, "r-ca", {"data": encoded})


def followed(world: World) -> bool:
    """There is a third authority, and everybody knows it."""
    bundles = {
        base64.b64decode(secret["data"]["ca.crt"]) for secret in world.api.list("Secret", world.namespace)
    }
    return {bundle.count(b"BEGIN") for bundle in bundles} == {3}


def evaluated(world: World) -> bool:
    return condition(world, "Evaluated") == "True"


def not_evaluated(world: World) -> bool:
    left = world.names("StatefulSet") | world.names("Service")
    return "r-evaluator" not in left and condition(world, "Evaluated") == ""


def fail_again(world: World) -> None:
    world.cast.end_container(world.pod("r-one-0", 0), 1, "AppError: broken again")


def given_up(world: World) -> bool:
    phase = world.get("LearnerUnit", "r-one-0")["status"]["phase"]
    return phase == "Failed" and not world.bench.pods("r-one-0") and status(world)["unitsSummary"] == "1/2"


def emptied(world: World) -> bool:
    left = {"r-one-0-tls", "r-two-0-tls"} & world.names("Secret") or world.names("LearnerUnit")
    return not left and not world.names("Pod") and condition(world, "Ready") == "False"


def announce_maintenance(world: World) -> None:
    world.taint_node(world.pod("r-one-0", 0), IMPENDING_TERMINATION)


def lose_node(world: World) -> None:
    world.taint_node(world.pod("r-two-0", 1), OUT_OF_SERVICE, lost=True)


def finish(world: World) -> None:
    world.cast.syncer.update(phase="Finished", finalCheckpoint="gs://bucket/run/global/100")


def finished(world: World) -> bool:
    left = world.bench.pods() or world.names("StatefulSet")
    return condition(world, "Complete") == "True" and not left


def create_and_delete(world: World) -> None:
    create(world)
    world.wait_for_pods(3)
    world.api.delete("TrainingRun", world.namespace, "r")


def gone(world: World) -> bool:
    return not any(
        world.names(kind) for kind in ("TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Secret")
    )


BOTH = ("r-one-0", "r-two-0")
ALL = (*BOTH, "r-two-1")
STORY = (
    Chapter("create", create, lambda world: all_learn(world, 2)),
    Chapter("a pod fails", fail_pod, lambda world: all_learn(world, 2, "r-one-0")),
    Chapter("a container fails", fail_container, lambda world: all_learn(world, 2, *BOTH)),
    Chapter(
        "a new image",
        lambda world: world.change(image="atoll.dev/runtime:new"),
        lambda world: rolled(world) and all_learn(world, 2, *BOTH),
    ),
    Chapter(
        "one unit more",
        lambda world: world.change(pools=pools(world, two=2)),
        lambda world: all_learn(world, 3, *BOTH),
    ),
    Chapter("a pod is lost", lose_pod, lambda world: all_learn(world, 3, *ALL)),
    Chapter("suspend", lambda world: world.change(suspend=True), suspended),
    other_shards(2),
    other_shards(1),
    Chapter("resume", lambda world: world.change(suspend=False), lambda world: all_learn(world, 3, *ALL)),
    Chapter(
        "one unit less",
        lambda world: world.change(pools=pools(world, two=1)),
        lambda world: shrunk(world) and all_learn(world, 2, *BOTH),
    ),
    Chapter("an authority is due", age_authority, followed),
    Chapter("an evaluator", lambda world: world.change(evaluation={"tokens": 4096}), evaluated),
    Chapter("no evaluator", lambda world: world.change(evaluation=None), not_evaluated),
    Chapter("a unit is out of restarts", fail_again, given_up),
    Chapter("no units", lambda world: world.change(units=0), emptied),
    Chapter(
        "units in a queue",
        lambda world: world.change(units=None, queueName="team"),
        lambda world: all_learn(world, 2),
    ),
    Chapter("maintenance", announce_maintenance, lambda world: all_learn(world, 2, "r-one-0")),
    Chapter(
        "a node is lost",
        lose_node,
        lambda world: all_learn(world, 2, *BOTH) and len(world.names("Pod")) == 3,
    ),
    Chapter("finish", finish, finished),
    Chapter("its time to live ends", lambda world: world.change(ttlSecondsAfterFinished=0), gone),
    Chapter("create and delete", create_and_delete, gone),
)
