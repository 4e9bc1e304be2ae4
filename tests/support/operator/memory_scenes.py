"""Scenes of several steps with a run in the memory world. A scene that fails raises AssertionError."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest.mock import patch

from memory_apiserver import Server
from memory_failures import (
    SEED,
    UNIT,
    WITNESS,
    begin,
    learns,
    node_gone,
    out_of_service,
    silent,
    until_learns,
)  # fmt: skip
from memory_world import SPEC, World, played
from objects import RUN

from atoll_operator.api.group import NODE_POOL
from atoll_operator.kube.cache import Key, key_of
from atoll_operator.kube.client import CONNECTIONS
from atoll_operator.kube.errors import Unreachable, of_status
from atoll_runtime.contract import EXIT_TERMINAL, LinkReport

BELONGINGS = (
    ("ConfigMap", "r-config"), ("Service", "r-syncer"), ("Service", UNIT), ("StatefulSet", "r-syncer"),
    ("Secret", f"{UNIT}-tls"), ("Secret", "r-syncer-tls"), ("PodDisruptionBudget", "r-syncer"),
)  # fmt: skip
Scene = Callable[[World], Coroutine[None, None, None]]
SCENES: dict[str, Scene] = {}


def scene(tell: Scene) -> Scene:
    SCENES[tell.__name__] = tell
    return tell


def play(name: str) -> None:

    async def work(world: World) -> None:
        begin(world)
        await until_learns(world, 1, UNIT, WITNESS)
        await SCENES[name](world)

    played(SEED, work)


def uids(world: World) -> dict[str, list[str]]:
    """Of the pods of both units."""
    return {name: world.uids(name) for name in (UNIT, WITNESS)}


def make_by_hand(world: World, name: str, run: str = "r") -> None:
    """A user makes another unit of the run."""
    made = world.server.get("LearnerUnit", UNIT)
    metadata, spec = {"name": name, "namespace": "ns"}, {**made["spec"], "run": run, "stream": 7}
    world.server.create({**made, "metadata": metadata, "spec": spec, "status": {}})


def hold(world: World, kind: str, name: str, *finalizers: str) -> None:
    """Somebody keeps the object by these finalizers; releases it without any."""
    world.change(kind, name, metadata={"finalizers": list(finalizers)})


@scene
async def unit_made_anew_waits_until_the_syncer_tells_its_last_incarnation(world: World) -> None:
    await world.until("it trains", lambda: world.run()["globalStep"] > 0)
    world.syncer.silent = True
    await world.until_condition("r", "Ready", "False", "SyncerUnavailable")
    world.server.delete("LearnerUnit", WITNESS)
    await world.until_condition(WITNESS, "Scheduled", "False", "SyncerUnavailable")
    await world.until("no pods", lambda: not world.pods(WITNESS))
    world.syncer.known[WITNESS] = 4
    world.syncer.silent = False
    await until_learns(world, 5, WITNESS)
    assert world.unit(WITNESS)["restartCount"] == 0


@scene
async def unit_that_a_finalizer_keeps_has_no_pods_beyond_the_limits(world: World) -> None:
    hold(world, "LearnerUnit", WITNESS, "tenant.example/keep")
    world.server.delete("LearnerUnit", WITNESS)
    await world.until("its pods are gone", lambda: not world.pods(WITNESS), 120)


@scene
async def run_whose_template_no_encoder_could_write_is_invalid_and_stops_no_other(world: World) -> None:
    part: dict[str, Any] = {}
    for _ in range(600):
        part = {"a": part}
    metadata = {"name": "deep", "namespace": "ns"}
    template = {"env": [{"name": "A", "valueFrom": part}]}
    world.server.create({**RUN, "metadata": metadata, "spec": {**SPEC, "podTemplate": template}})
    told = lambda: world.server.get("TrainingRun", "deep").get("status", {}).get("conditions")  # noqa: E731
    await world.until("it is told", told)
    world.cluster.fail_container(world.pods(UNIT)[0])
    await until_learns(world, 2, UNIT)
    [ready] = [each for each in told() if each["type"] == "Ready"]
    assert ready["reason"] == "SpecInvalid"
    assert "podTemplate.env.0.valueFrom: must have at most 32 levels" in ready["message"]


@scene
async def pods_that_somebody_deletes_at_once_are_made_again_once_a_second(world: World) -> None:
    world.cluster.schedule_seconds, made = 600.0, 0
    world.server.delete("LearnerUnit", UNIT)
    for _ in range(600):
        for pod in [each for each in world.pods(UNIT) if "nodeName" not in each["spec"]]:
            world.server.delete("Pod", pod["metadata"]["name"], 0)
            made += 1
        await asyncio.sleep(0.1)
    assert 10 < made <= 70, made
    world.cluster.schedule_seconds = 0.5
    await until_learns(world, 2, UNIT)


@scene
async def pod_that_a_late_first_list_lacks_costs_no_incarnation(world: World) -> None:
    before, late, every = world.uids(UNIT), world.pods(UNIT)[1]["metadata"]["name"], Server.every

    def lacks(server: Server, kind: str) -> Iterator[Any]:
        return (body for body in every(server, kind) if body["metadata"]["name"] != late)

    with patch.object(Server, "every", lacks):
        world.operate()
    for key in world.planned():
        world.term.queue.add(key)
    await asyncio.sleep(30)
    assert learns(world, 1, UNIT, WITNESS) and world.uids(UNIT) == before


@scene
async def pod_that_fails_while_it_is_told_its_incarnation_is_replaced_at_once(world: World) -> None:
    """The answer to the operator's own write is the first that tells of the failure."""
    world.syncer.silent = True  # no report wakes the unit
    await asyncio.sleep(60)
    world.server.weather.watch_seconds, tell = 2.0, Server._change_metadata
    failed: list[str] = []

    def fails(server: Server, kind: str, name: str, *change: Any) -> Any:
        if not failed:
            failed.append(name)
            world.cluster.fail_pod(server.get("Pod", name), 137)
        return tell(server, kind, name, *change)

    with patch.object(Server, "_change_metadata", fails):
        world.cluster.fail_container(world.pods(WITNESS)[0])
        await world.until("it failed", lambda: failed)
    [name] = failed
    await world.until("it is replaced", lambda: world.pods(WITNESS)[0]["metadata"]["name"] != name, 5)


@scene
async def pods_that_stay_restart_also_while_a_quota_refuses_the_new_one(world: World) -> None:
    victim, *others = world.pods(UNIT)
    stay = {pod["metadata"]["uid"] for pod in others}
    incarnations = lambda: {  # noqa: E731
        pod["metadata"]["annotations"]["atoll.dev/incarnation"] for pod in world.pods(UNIT)
    }
    world.server.refused.add("Pod")
    world.cluster.fail_pod(victim, 1)
    await world.until_condition(UNIT, "Scheduled", "ObjectRefused")
    await world.until("the others are told", lambda: incarnations() == {"2"})
    await asyncio.sleep(300)  # longer than a restart may take
    assert set(world.uids(UNIT)) == stay
    world.server.refused.clear()
    await until_learns(world, 2, UNIT)
    assert stay < set(world.uids(UNIT)) and world.unit(UNIT)["restartCount"] == 1


@scene
async def what_follows_a_status_follows_also_when_the_answer_to_its_write_is_lost(world: World) -> None:
    """The unit's first write is refused. The next is stored, sent again, and refused for a conflict. The run's is not
    answered at all."""
    answer, lost, refused = Server.answer, dict[str, str](), list[str]()
    errors = {UNIT: of_status(409, "Conflict", "the object has been modified"), "r": Unreachable("no answer")}

    def loses(server: Server, method: str, path: str, body: dict[str, Any], *rest: Any) -> Any:
        status = body.get("status", {})
        name, said = path.split("/")[-2], f"{status.get('incarnation', status.get('phase'))}"
        loses = method == "PUT" and (name, said) in ((UNIT, "2"), ("r", "Failed")) and name not in lost
        if loses and name == UNIT and not refused:
            refused.append(name)
            raise errors[name]
        found = answer(server, method, path, body, *rest)
        if loses:
            lost[name] = said
            raise errors[name]
        return found

    def restarts() -> float:
        [family] = world.metrics._restarts.collect()
        return sum(each.value for each in family.samples if each.name.endswith("_total"))

    with patch.object(Server, "answer", loses):
        world.cluster.fail_pod(world.pods(UNIT)[1], 137)
        await until_learns(world, 2, UNIT)
        assert restarts() == 1
        world.change_run(activeDeadlineSeconds=1)
        await world.until("it failed", lambda: world.run()["phase"] == "Failed")
        await asyncio.sleep(60)
    assert lost.keys() == errors.keys() and not world.pods()
    reasons = [event["reason"] for event in world.server.every("Event")]
    assert {"AppError", "Healed", "DeadlineExceeded"} <= {*reasons}, reasons


@scene
async def unit_that_does_not_set_the_interval_says_so_as_long_as_that_is_so(world: World) -> None:
    why = "steps of 7200 s, more than 4 × the median of 1 s: does not set the interval, contributes at its own pace"
    world.syncer.says[UNIT, 1] = {"slow": why}
    await world.until_condition(UNIT, "Learning", "True", "SlowSteps")
    assert any(each["message"].endswith(f"; {why}") for each in world.unit(UNIT)["conditions"])
    assert world.condition(WITNESS, "Learning") == ("True", "Merged")
    assert learns(world, 1, UNIT, WITNESS), "nothing is done about it"
    world.syncer.says.clear()
    await world.until_condition(UNIT, "Learning", "True", "Merged")


@scene
async def suspect_unit_learns_on_other_hosts_and_never_on_those_that_it_left(world: World) -> None:
    for name, incarnation in itertools.product((UNIT, WITNESS), (1, 2, 3)):
        nodes = sorted(pod["spec"]["nodeName"] for pod in world.pods(name))
        places = {node.rpartition("-")[0] for node in nodes} if name == UNIT else set(nodes)
        left = {place for restart in world.unit(name)["restarts"] for place in restart["avoid"]}
        assert not places & left and len(left) == incarnation - 1, (places, left)
        world.syncer.says[name, incarnation] = {"suspect": "8 refused"}
        await world.until_condition(name, "Suspect", "True", "Suspect")
        told = f"): {', '.join(nodes)}"
        assert any(told in each["message"] for each in world.unit(name)["conditions"])
        await world.until("an Event tells it", lambda told=told: told in world.told())
        await until_learns(world, incarnation + 1, name)
        assert world.condition(name, "Suspect") == ("False", "NotSuspect")


@scene
async def figures_follow_the_syncers_report_seldom_and_all_else_is_written_at_once(world: World) -> None:
    await world.until("it trains", lambda: world.run()["globalStep"] > 0)
    await asyncio.sleep(60)  # until nothing but figures changes
    history: list[int] = []
    seen: dict[str, set[int]] = {"r": set(), UNIT: set()}
    for number in range(300):
        link = LinkReport(codec="int4", period=2 + number, load=2 + number)
        world.syncer.says[UNIT, 1] = {"link": link}
        history.append(world.syncer.step)
        seen["r"].add(world.run()["globalStep"])
        seen[UNIT].add(world.unit(UNIT)["step"])
        for key in world.planned():
            world.term.queue.add(key)  # a pass writes no figures before it is time
        await asyncio.sleep(1)
    assert world.run()["globalStep"] >= history[-16], "at most 12 s old, and a poll"
    assert world.unit(UNIT)["step"] >= history[-40], "at most 36 s old, and a poll"
    assert 24 <= len(seen["r"]) <= 31, "every 10 to 12 s"
    assert 8 <= len(seen[UNIT]) <= 11, "every 30 to 36 s"
    assert world.condition(UNIT, "LinkAdequate") == ("False", "LinkTooSlow")
    world.syncer.says[UNIT, 1] = {"link": LinkReport(codec="int4", period=1, load=0.5)}
    await asyncio.sleep(3)  # a poll
    assert world.condition(UNIT, "LinkAdequate") == ("True", "Narrowed")
    world.syncer.silent = True  # no report wakes the run
    await asyncio.sleep(60)
    world.cluster.fail_pod(world.pods(UNIT)[1], 1)
    await asyncio.sleep(2)
    assert (world.unit(UNIT)["incarnation"], world.run()["restarts"]) == (2, 1)


@scene
async def units_that_are_removed_do_not_wait_for_those_that_a_quota_refuses(world: World) -> None:
    apply = Server._apply

    def limited(server: Server, sent: dict[str, Any]) -> Any:
        new = key_of(sent["kind"], sent) not in server.objects
        if sent["kind"] == "LearnerUnit" and new and len(list(server.every("LearnerUnit"))) == 2:
            raise of_status(403, "Forbidden", "exceeded quota")
        return apply(server, sent)

    [one, two] = SPEC["pools"]
    with patch.object(Server, "_apply", limited):
        world.change_run(pools=[{**one, "units": 0}, {**two, "units": 2}])
        await until_learns(world, 1, UNIT, "r-two-1")


@scene
async def refusal_of_a_large_gang_shows_at_once_and_its_other_pods_are_not_asked_for(world: World) -> None:
    asked, answer = list[str](), Server.answer

    def counted(server: Server, method: str, path: str, *rest: Any) -> Any:
        asked.extend([path] if method == "POST" and path.endswith("/pods") else [])
        return answer(server, method, path, *rest)

    big = {"name": "big", "accelerator": "tpu-v5p-slice", "topology": "16x16x24", "units": 1}
    world.server.refused.add("Pod")
    with patch.object(Server, "answer", counted):
        world.change_run(pools=[*SPEC["pools"], {**big, "nodeSelector": {NODE_POOL: "big"}}])
        await world.until("asked for", lambda: asked)
        await world.until("told", lambda: world.condition("r-big-0", "Scheduled")[1] == "ObjectRefused", 5)
    assert len(asked) <= 2 * CONNECTIONS, "of 1,536 pods"


@scene
async def unit_by_hand_whose_certificate_has_another_owner_does_not_stop_its_run(world: World) -> None:
    metadata = {"name": "web-tls", "namespace": "ns"}
    world.server.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    make_by_hand(world, "web")
    await world.until_condition("r", "Degraded", "True", "ObjectRefused")
    world.resize(1)
    await until_learns(world, 1, "r-two-1")
    assert world.condition("r", "Degraded") == ("True", "ObjectRefused")
    world.server.delete("Secret", "web-tls")
    await until_learns(world, 1, "web")
    world.server.delete("LearnerUnit", "web")
    make_by_hand(world, "web")
    for _ in range(100):
        assert world.condition("r", "Ready") == ("True", "QuorumLearning")
        await asyncio.sleep(0.1)
    await world.until("it learns again", lambda: world.unit("web").get("phase") == "Learning")


@scene
async def evaluator_whose_certificate_has_another_owner_does_not_stop_its_run(world: World) -> None:
    metadata = {"name": "r-evaluator-tls", "namespace": "ns"}
    world.server.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    world.change_run(evaluation={})
    await world.until_condition("r", "Evaluated", "False", "ObjectRefused")
    world.operate()
    world.resize(1)
    await until_learns(world, 1, "r-two-1")
    assert world.condition("r", "Degraded") == ("False", "AsExpected")
    world.server.delete("Secret", "r-evaluator-tls")
    await world.until_condition("r", "Evaluated", "True")


@scene
async def object_of_others_under_one_of_our_names_is_reported_and_left_alone(world: World) -> None:
    for kind, name, whose in (
        ("Pod", "r-two-1-1-0", "LearnerUnit"),
        ("Service", "r-two-1", "LearnerUnit"),
        ("Secret", "r-two-1-tls", "TrainingRun"),
    ):
        metadata = {"name": name, "namespace": "ns", "labels": {}}
        foreign = world.server.create({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {}})
        world.resize(1)
        words = f"{kind} {name!r} is not the {whose}'s: delete it, or use another name"
        await world.until("it says so", lambda words=words: words in world.run()["message"])
        assert world.condition("r", "Degraded") == ("True", "ObjectRefused")
        assert world.server.get(kind, name)["metadata"]["uid"] == foreign["metadata"]["uid"]
        world.server.delete(kind, name, 0)
        await world.until("it goes on", lambda: world.unit("r-two-1").get("phase") == "Learning")
        world.resize(-1)
        await world.until("it is gone", lambda: not world.unit("r-two-1") and not world.pods("r-two-1"))


@scene
async def another_operator_restarts_nothing_until_the_user_names_another_image(world: World) -> None:
    def uids() -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.server.every("Pod")}

    def made_of(pod: Any) -> tuple[str, bool]:
        [main] = pod["spec"]["containers"]
        return main["image"], any(each["name"] == "A" for each in main["env"])

    world.change_run(evaluation={"tokens": 4096})
    await world.until_condition("r", "Evaluated", "True")
    before = uids()
    world.operate(runtime_image="image:new", runtime_env={"A": "1"})
    await asyncio.sleep(60)
    assert uids() == before
    world.cluster.fail_pod(world.pods(UNIT)[1], 137)
    await until_learns(world, 2, UNIT)
    assert {made_of(pod) for pod in world.server.every("Pod")} == {("i", False)}
    world.change_run(image="image:new")
    renewed = lambda: {made_of(pod) for pod in world.server.every("Pod")} == {("image:new", True)}  # noqa: E731
    await world.until("all have it", renewed)
    assert world.run()["runtime"]["asked"] == "image:new"


@scene
async def run_made_anew_waits_for_what_is_left_of_the_last_one_and_not_for_its_evaluator(
    world: World,
) -> None:
    """Nor does it fail for what ended the last one's syncer."""
    world.change_run(evaluation={"tokens": 4096})
    await world.until_condition("r", "Evaluated", "True")
    spec = world.server.get("TrainingRun", "r")["spec"]
    world.cluster.restart(
        world.server.get("Pod", "r-syncer-0"), EXIT_TERMINAL, "BucketMissing: there is none"
    )
    held = (("Secret", "r-ca"), ("StatefulSet", "r-evaluator"))
    for kind, name in held:
        hold(world, kind, name, "example.com/hold")
    world.server.delete("TrainingRun", "r")
    world.create_run(**spec)
    for kind, name in held:
        told = f"{kind} {name!r} belongs to an earlier object"
        await world.until("it says so", lambda told=told: told in world.run().get("message", ""))
        assert world.condition("r", "Ready") == ("False", "NameTaken")
        assert len(world.run()["conditions"]) == 8
        await asyncio.sleep(60)
        assert (world.run()["phase"] == "Running") is (name == "r-evaluator")
        hold(world, kind, name)
    await world.until_condition("r", "Evaluated", "True")
    await world.until_condition("r", "Ready", "True")


@scene
async def unit_of_a_run_made_anew_does_not_wait_for_a_pod_that_a_silent_node_keeps(world: World) -> None:
    kept = world.pods(UNIT)[1]["metadata"]
    silent(world, world.pods(UNIT)[1])
    world.syncer.silent = True
    world.server.delete("TrainingRun", "r")
    await world.until("its unit is gone", lambda: not world.unit(UNIT))
    world.create_run()
    await world.until("it has pods", lambda: len(world.pods(UNIT)) == 2)
    world.syncer.known.clear()  # a run has a syncer of its own
    world.syncer.silent = False
    await until_learns(world, 2, UNIT)
    assert world.unit(UNIT)["restartCount"] == 0
    assert world.server.get("Pod", kept["name"])["metadata"]["uid"] == kept["uid"]


@scene
async def broken_authority_is_reported_and_made_again_once_it_is_deleted(world: World) -> None:
    before, secret = uids(world), world.server.get("Secret", "r-ca")
    world.change("Secret", "r-ca", data={"ca.crt": base64.b64encode(b"x").decode()})
    await world.until("it says so", lambda: "r-ca" in world.run()["message"])
    world.server.delete("Secret", "r-ca")

    def renewed() -> bool:
        bundles = {each["data"]["ca.crt"] for each in world.server.every("Secret")}
        return len(bundles) == 1 and secret["data"]["ca.crt"] not in bundles

    await world.until("all trust a new one", renewed)
    assert uids(world) == before


@scene
async def pods_of_the_run_leave_a_lost_node_and_a_silent_one_only_by_force(world: World) -> None:
    world.change_run(evaluation={"tokens": 4096})
    await world.until_condition("r", "Evaluated", "True")

    def pod(name: str) -> Any:
        return world.server.objects.get(Key("Pod", "ns", name), {"status": {"phase": "Gone"}})

    for name in ("r-syncer-0", "r-evaluator-0"):
        for force, lose in ((False, out_of_service), (False, node_gone), (False, silent), (True, silent)):
            await world.until("it runs", lambda name=name: pod(name)["status"]["phase"] == "Running")
            world.change_run(recovery={**SPEC["recovery"], "forceDelete": force})
            old = pod(name)["metadata"]["uid"]
            lose(world, world.server.get("Pod", name))
            await asyncio.sleep(2)  # less than `nodeLostSeconds`
            assert lose is not silent or "deletionTimestamp" not in pod(name)["metadata"]
            await asyncio.sleep(58)
            assert (pod(name)["metadata"]["uid"] == old) is (lose is silent and not force), (name, lose)
            world.cluster.mend_nodes()


async def mended(world: World, key: Key, wrong: dict[str, Any]) -> None:
    """Delete an object, change the one that replaces it, and wait until that is corrected."""
    objects = world.server.objects
    old = objects[key]["metadata"]["uid"]
    world.server.delete(key.kind, key.name)
    await world.until(f"another {key}", lambda: key in objects and objects[key]["metadata"]["uid"] != old)
    changed = world.change(key.kind, key.name, **wrong)
    await world.until(f"{key} is right", lambda: all(objects[key][part] != changed[part] for part in wrong))


@scene
async def what_others_delete_or_change_is_put_right_and_what_they_add_stays(world: World) -> None:
    before = uids(world)
    wrong: dict[str, Any] = {
        "ConfigMap": {"data": {"run.json": "{}"}},
        "Service": {"spec": {"selector": {}}},
        "StatefulSet": {"spec": {"replicas": 3}},
        "Secret": {"data": {"tls.crt": "eA=="}},
        "PodDisruptionBudget": {"spec": {"maxUnavailable": 9}},
    }
    for kind, name in BELONGINGS:
        await mended(world, Key(kind, "ns", name), wrong[kind])
    added = []
    for kind, name in BELONGINGS:
        known = world.server.get(kind, name)["metadata"].get("annotations", {})
        added.append(world.change(kind, name, metadata={"annotations": {**known, "seen": "yes"}}))
    await asyncio.sleep(60)
    assert [world.server.get(kind, name) for kind, name in BELONGINGS] == added
    assert uids(world) == before


def waits(world: World) -> bool:
    """The run s waits for room."""
    message = str(world.server.get("TrainingRun", "s").get("status", {}).get("message", ""))
    return message.startswith("runs: 1 of at most 1 have begun") and not world.pods("s-p-0")


@scene
async def runs_beyond_the_limit_wait_and_what_runs_is_not_stopped(world: World) -> None:
    before = uids(world)
    world.operate(limits={"runs": 1})
    world.server.create({**RUN, "metadata": {"name": "s", "namespace": "ns"}})
    await world.until("the newer one waits", lambda: waits(world))
    await asyncio.sleep(60)
    assert waits(world) and uids(world) == before
    world.change_run(suspend=True)
    await world.until("it begins", lambda: world.pods("s-p-0"))
    newer = world.uids("s-p-0")
    world.change_run(suspend=False)
    await world.until_condition("r", "Ready", "False", "NamespaceLimit")
    await asyncio.sleep(60)
    assert not any(uids(world).values()) and world.uids("s-p-0") == newer
    assert world.condition("r", "Suspended")[0] == "True", "it stays suspended"
    world.server.delete("TrainingRun", "s")
    await until_learns(world, 2, UNIT, WITNESS)


@scene
async def units_beyond_the_limit_wait_until_there_is_room(world: World) -> None:
    world.operate(limits={"hosts": 5})
    await world.until("its hosts count", lambda: world.run().get("hosts") == 3)
    make_by_hand(world, "by-hand")
    await until_learns(world, 1, "by-hand")
    before = uids(world), world.uids("by-hand")
    world.resize(1)
    await world.until_condition("r", "Degraded", "True", "NamespaceLimit")
    await asyncio.sleep(60)
    assert not world.unit("r-two-1") and (uids(world), world.uids("by-hand")) == before
    world.server.delete("LearnerUnit", "by-hand")
    await until_learns(world, 1, "r-two-1")
    make_by_hand(world, "by-hand")
    await world.until_condition("by-hand", "Scheduled", "False", "NamespaceLimit")
    world.resize(-1)
    await world.until("it has pods", lambda: len(world.pods("by-hand")) == 2)


@scene
async def run_of_another_version_counts_in_the_limits_and_is_not_stopped(world: World) -> None:
    await world.until("its hosts count", lambda: world.run().get("hosts") == 3)
    before, [one, two] = uids(world), world.server.get("TrainingRun", "r")["spec"]["pools"]
    world.change_run(pools=[one, {**two, "units": 1000}])
    await world.until_condition("r", "Degraded", "True", "SpecInvalid")
    world.operate(limits={"runs": 1, "hosts": 4})
    make_by_hand(world, "by-hand")
    world.server.create({**RUN, "metadata": {"name": "s", "namespace": "ns"}})
    unread = {**RUN["spec"], "pools": [{**RUN["spec"]["pools"][0], "units": 1000}]}
    world.server.create({**RUN, "metadata": {"name": "t", "namespace": "ns"}, "spec": unread})
    await world.until("it is seen", lambda: world.server.get("TrainingRun", "t").get("status"))
    make_by_hand(world, "of-the-unread", "t")
    for name in ("by-hand", "of-the-unread"):
        await world.until_condition(name, "Scheduled", "False", "NamespaceLimit")
    await world.until("the newer one waits", lambda: waits(world))
    world.change_run(pools=[one, two])
    world.change("TrainingRun", "r", status={**world.run(), "phase": "Paused"})
    world.operate(limits={"runs": 0, "hosts": 0})
    await asyncio.sleep(60)
    assert uids(world) == before and not world.pods("by-hand") and not world.pods("of-the-unread")


@scene
async def pod_that_a_finalizer_keeps_does_not_block_its_host(world: World) -> None:
    """Both if its kubelet reports its end and if it reports nothing."""
    for silent_kubelet, incarnation in ((False, 2), (True, 4)):  # the last one on other hosts, after 90 s
        pod = world.pods(UNIT)[1]
        hold(world, "Pod", pod["metadata"]["name"], "example.com/hold")
        if silent_kubelet:
            world.cluster.dead.add(pod["spec"]["nodeName"])
        world.server.delete("Pod", pod["metadata"]["name"])
        if not silent_kubelet:
            world.cluster.fail_pod(world.server.get("Pod", pod["metadata"]["name"]), 143)
        await until_learns(world, incarnation, UNIT, seconds=300)
        assert Key("Pod", "ns", pod["metadata"]["name"]) in world.server.objects
        assert learns(world, 1, WITNESS)


@scene
async def definitions_older_than_the_operator_are_told_and_stop_a_heal_only_if_it_could_not_be_stored(
    world: World,
) -> None:
    told = lambda field: f"the CRDs lack status.{field}" in world.told()  # noqa: E731
    world.server.lacks = frozenset({"lastFailure"})
    world.cluster.fail_pod(world.pods(UNIT)[1], 137)
    await until_learns(world, 2, UNIT)
    assert told("lastFailure") and "lastFailure" not in world.unit(UNIT)
    before, world.server.lacks = world.uids(UNIT), frozenset({"incarnation"})
    world.cluster.fail_container(world.pods(UNIT)[1], 64)
    await world.until("it says so", lambda: told("incarnation"))
    await asyncio.sleep(60)
    assert world.uids(UNIT) == before
    world.server.lacks = frozenset()
    await until_learns(world, 3, UNIT)


@scene
async def parts_of_newer_definitions_are_named_and_stop_no_heal(world: World) -> None:
    unit, config = world.server.get("LearnerUnit", UNIT), world.server.get("ConfigMap", "r-config")
    world.change_run(recovery={**SPEC["recovery"], "spareHosts": 2, "belowQuorum": "Shrink"})
    world.change("LearnerUnit", UNIT, spec={"spareHosts": 3})
    for name in ("r", UNIT):
        await world.until_condition(name, "VersionSkew", "True", "UnknownFields")
    for words in ("belowQuorum: 'Shrink'", "recovery.spareHosts: 2", "spec.spareHosts: 3"):
        await world.until("an Event names it", lambda words=words: words in world.told())
    await until_learns(world, 2, UNIT)  # another spec gives a unit other pods
    world.cluster.fail_pod(world.pods(UNIT)[1], 137)
    await until_learns(world, 3, UNIT)
    assert world.server.get("ConfigMap", "r-config") == config
    world.change_run(recovery=SPEC["recovery"])
    world.server.change({**world.server.get("LearnerUnit", UNIT), "spec": unit["spec"]})
    for name in ("r", UNIT):
        await world.until("it is gone", lambda name=name: world.condition(name, "VersionSkew") == ("", ""))


@scene
async def what_cannot_be_read_of_a_run_or_a_unit_stops_no_other_unit(world: World) -> None:
    batch = world.server.get("LearnerUnit", WITNESS)["spec"]["batch"]
    world.change("LearnerUnit", WITNESS, spec={"batch": "many"})
    await world.until_condition(WITNESS, "Scheduled", "False", "SpecInvalid")
    [one, two] = world.server.get("TrainingRun", "r")["spec"]["pools"]
    world.change_run(pools=[one, {**two, "units": 1000}])
    await world.until_condition("r", "Degraded", "True", "SpecInvalid")
    witness = world.uids(WITNESS)
    world.cluster.fail_pod(world.pods(UNIT)[1], 137)
    await until_learns(world, 2, UNIT)
    assert world.uids(WITNESS) == witness
    world.change_run(pools=[one, two])
    world.change("LearnerUnit", WITNESS, spec={"batch": batch})
    await until_learns(world, 2, UNIT, WITNESS)
    await world.until_condition("r", "Degraded", "False")


@scene
async def run_that_cannot_be_read_has_its_syncer_polled_and_its_certificates_kept(world: World) -> None:
    world.change_run(evaluation={})
    secrets = [Key("Secret", "ns", f"{name}-tls") for name in (UNIT, "r-syncer", "r-evaluator")]
    await world.until("it has an evaluator", lambda: secrets[-1] in world.server.objects)
    [one, two] = world.server.get("TrainingRun", "r")["spec"]["pools"]
    world.change_run(pools=[one, {**two, "units": 1000}])
    await world.until_condition("r", "Degraded", "True", "SpecInvalid")
    world.operate()
    for secret in secrets:
        world.server.delete(*secret[::2])
    await world.until("all are issued again", lambda: world.server.objects.keys() >= {*secrets})
    world.syncer.says[UNIT, 1] = {"step": 0}
    await until_learns(world, 2, UNIT)
    assert world.unit(UNIT)["lastFailure"]["reason"] == "Hang"
    assert learns(world, 1, WITNESS)
