"""Stories of a run in the memory world: random acts happen, and then nothing more. At the end the operator must be at
rest, a further pass must find nothing to do, and if all nodes are sound the run must be well. The operator learns of
changes by watches, answers, polls and timers: late, in any order, and of some never. A lost wake-up shows as work left
undone, which only the next resync would find."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from memory_apiserver import Weather
from memory_failures import Act, container_fails, deleted, maintenance, node_gone, pod_fails, silent
from memory_world import SPEC, World, played
from worldview import differences

from atoll_operator.api.group import LABEL_UNIT
from atoll_operator.plan.conditions import FIGURES

CALM_SECONDS = 200.0
"""After this long without a change nothing is under way. A suspension waits for its checkpoint for 180 s."""
LONGEST_SECONDS = 3600.0
LOOK_SECONDS = 20.0
FORGET_SECONDS = 700.0
"""After this time neither a back-off nor the kubelets consider an earlier restart."""
DAY = 86_400.0
MOST_ACTS = 8
GAPS = (0.0, 0.05, 0.3, 1.0, 3.0, 20.0)
"""Seconds from one act to the next."""
ACCIDENTS = (
    "fail pod", "end pod", "delete pod", "fail container", "lose node", "remove node", "taint node", "mend nodes",
    "bad weather", "good weather", "restart operator",
)  # fmt: skip
ACTS = (
    *ACCIDENTS[:8], "suspend", "resume", "grow", "shrink", "new image", "delete unit", "finish", "refuse pods",
    "allow pods", *ACCIDENTS[8:],
)  # fmt: skip
OF_A_POD: dict[str, Act] = {
    "fail pod": pod_fails(137), "end pod": pod_fails(0), "fail container": container_fails(),
    "lose node": silent, "remove node": node_gone, "taint node": maintenance,
}  # fmt: skip
Story = list[tuple[float, str]]
"""Each entry is an act, and the seconds from it to the next one."""


def outcome(seed: int) -> str:
    """What is wrong at the end of this story, with the story; empty if nothing is wrong."""
    return _told(seed, ACTS, tell)


def contest(seed: int) -> str:
    """The same for a story of units that compete for too few node pools."""
    return _told(seed, ACCIDENTS, contend)


def _told(seed: int, acts: Sequence[str], how: Callable[[World, Story], Coroutine[None, None, str]]) -> str:
    draw = random.Random(seed)
    story = [(draw.choice(GAPS), draw.choice(acts)) for _ in range(draw.randint(1, MOST_ACTS))]
    wrong = played(seed, lambda world: how(world, story))
    return f"seed {seed}: {story}: {wrong}" if wrong else ""


async def contend(world: World, story: Story) -> str:
    """Check that as many units as fit learn in the end. The scheduler checks that no node pool is shared."""
    units, slices, pools = (world.random.randint(1, most) for most in (3, 2, 4))
    world.blind, world.syncer.tick_seconds = world.random.random() < 0.3, 2.0
    world.cluster.keep_pools(pools)
    world.cluster.schedule_seconds = 10.0  # slices of several units get their pools in any order
    world.begin(pools=[{**SPEC["pools"][1], "units": units, "slicesPerUnit": slices}])
    await happen(world, story)
    world.server.weather = Weather()
    world.cluster.mend_nodes()
    room = min(units, pools // slices)

    def learning() -> int:
        phases = [unit.get("status", {}).get("phase") for unit in world.server.every("LearnerUnit")]
        return phases.count("Learning")

    told = f"{room} of {units} units of {slices} in {pools} learn"
    await world.until(told, lambda: learning() >= room, DAY)
    return ""


async def tell(world: World, story: Story) -> str:
    one, two = SPEC["pools"]
    recovery = {"forceDelete": world.random.random() < 0.5, "inPlace": world.random.random() < 0.8}
    world.begin(
        pools=[one, {**two, "slicesPerUnit": world.random.choice((1, 1, 2))}],
        recovery={**SPEC["recovery"], **recovery},
        **({"queueName": "team"} if world.random.random() < 0.2 else {}),
    )
    await happen(world, story)
    world.server.weather = Weather()
    mended = world.random.random() < 0.7
    if mended:
        world.server.refused.clear()
        world.cluster.mend_nodes()
    if not await calm(world):
        return f"never at rest: {unwell(world)}"
    left = essence(world)
    for key in world.planned():
        world.term.queue.add(key)
    await asyncio.sleep(LOOK_SECONDS)
    wrong = list(differences(left, essence(world))) or (unwell(world) if mended else [])
    if mended and not wrong:
        wrong = await needless(world)
    return "; ".join(wrong)


async def happen(world: World, story: Story) -> None:
    await asyncio.sleep(world.random.choice((0.5, 3.0, 30.0)))
    for gap, act in story:
        world.check()
        perform(world, act)
        await asyncio.sleep(gap)


async def needless(world: World) -> list[str]:
    """Fail one pod of a healthy world. Return healthy pods that were replaced, and what is wrong then."""
    await asyncio.sleep(FORGET_SECONDS)
    pods = [pod for pod in world.pods() if pod["status"]["phase"] == "Running"]
    if not pods:
        return []
    pod, act = world.random.choice(pods), world.random.choice(("fail pod", "delete pod", "fail container"))
    unit = pod["metadata"]["labels"][LABEL_UNIT]
    perform(world, act, pod)
    if not await calm(world, asyncio.get_running_loop().time() + LONGEST_SECONDS):
        return [f"never at rest after {act}"]
    spec = world.server.get("TrainingRun", "r")["spec"]
    alone = spec["recovery"]["inPlace"] and ("queueName" not in spec or act == "fail container")
    kept = {
        each["metadata"]["uid"]: each["metadata"]["name"]
        for each in pods
        if each["metadata"]["labels"][LABEL_UNIT] != unit or (alone and each is not pod)
    }
    if alone and act == "fail container":
        kept[pod["metadata"]["uid"]] = pod["metadata"]["name"]
    gone = kept.keys() - {each["metadata"]["uid"] for each in world.pods()}
    found = [f"{act} of {pod['metadata']['name']} replaced {kept[uid]}" for uid in sorted(gone)]
    return [*found, *unwell(world)]


def perform(world: World, act: str, victim: dict[str, Any] | None = None) -> None:
    pods = world.pods()
    pod = victim or (world.random.choice(pods) if pods else None)
    units = [key.name for key in world.planned() if key.kind == "LearnerUnit"]
    running = pod is not None and pod["status"]["phase"] == "Running"
    match act:
        case "fail pod" | "end pod" | "fail container" if running:
            OF_A_POD[act](world, pod)
        case "lose node" | "remove node" | "taint node" if pod:
            OF_A_POD[act](world, pod)
        case "delete pod" if pod:
            deleted(world.random.choice((None, 0, 3)))(world, pod)
        case "mend nodes":
            world.cluster.mend_nodes()
        case "suspend" | "resume":
            world.change_run(suspend=act == "suspend")
        case "grow" | "shrink":
            world.resize(1 if act == "grow" else -1)
        case "new image":
            world.change_run(image=f"image:{world.random.randrange(3)}")
        case "delete unit" if units:
            world.server.delete("LearnerUnit", world.random.choice(units))
        case "bad weather":
            world.server.weather = Weather(1.0, 3.0, 0.05, 0.05)
        case "good weather":
            world.server.weather = Weather()
        case "restart operator":
            world.operate()
        case "refuse pods" | "allow pods":
            world.server.refused = {"Pod"} if act == "refuse pods" else set()
        case "finish":
            world.syncer.finished = True


async def calm(world: World, deadline: float = LONGEST_SECONDS) -> bool:
    """Waits until only figures have changed for `CALM_SECONDS`. Returns whether that happened by `deadline`."""
    loop = asyncio.get_running_loop()
    last, since = essence(world), loop.time()
    while loop.time() < since + CALM_SECONDS:
        if loop.time() > deadline:
            return False
        await asyncio.sleep(5)
        world.check()
        if (now := essence(world)) != last:
            last, since = now, loop.time()
    return True


def essence(world: World) -> dict[str, Any]:
    """All objects except Events, without the figures and the messages of their status."""
    return {f"{key}": lasting(body) for key, body in world.server.objects.items() if key.kind != "Event"}


def lasting(body: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    status = {name: value for name, value in body.get("status", {}).items() if name not in FIGURES}
    conditions = [(each["type"], each["status"], each.get("reason")) for each in status.get("conditions", [])]
    return {**body, "metadata": metadata, "status": {**status, "conditions": conditions}}


def unwell(world: World) -> list[str]:
    """What is wrong in a world with sound nodes."""
    run = world.server.get("TrainingRun", "r")
    suspended = run["spec"].get("suspend", False)
    wanted = {"Suspended"} if suspended else {"Complete"} if world.syncer.finished else {"Running"}
    if suspended and world.syncer.finished:  # whichever came first
        wanted = {"Suspended", "Complete"}
    phase = run.get("status", {}).get("phase")
    found = [] if phase in wanted else [f"the run is {phase}, not {wanted}: {run.get('status')}"]
    expected = {"Complete": "Finished", "Suspended": "Suspended"}.get(phase, "Learning")
    for unit in world.server.every("LearnerUnit"):
        status = unit.get("status", {})
        if status.get("phase") != expected:
            found.append(f"{unit['metadata']['name']} is {status.get('phase')}, not {expected}: {status}")
    return found
