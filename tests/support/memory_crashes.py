"""Chapters of a run's story told from a snapshot, with and without the death of the operator at one of its writes."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, get_args

from crash_story import STORY, Chapter
from leaping import leap
from memory_apiserver import Fault, Object
from memory_world import World, clocks
from worldview import Occasion, differences, essence, occasions

SEED = 20261124
CALM_SECONDS = 6.0
"""For which a world without a death has to stay as it is before that counts as the end of a chapter."""
LASTING_SECONDS = 3.0
"""For which a world has to stay as it should be: what is done twice is done at once."""
LONGEST_SECONDS = 900.0
KINDS = (
    "TrainingRun",
    "LearnerUnit",
    "Pod",
    "StatefulSet",
    "Service",
    "ConfigMap",
    "Secret",
    "Event",
)
When = Literal["before", "after"]
End = tuple[dict[str, dict[str, Object]], Counter[Occasion]]
"""Objects by kind and name, and Events."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A world at rest, from which a chapter can be told many times."""

    second: float = 0.0
    server: tuple[Any, ...] = ()
    cluster: tuple[Any, ...] = ()
    syncer: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """A chapter without a death: where it began, how it ended, and how many writes it took."""

    name: str
    begin: Snapshot
    end: End
    writes: int


@dataclass(frozen=True, slots=True)
class Death:
    """Of the operator, at the n-th write of a chapter, from 1."""

    chapter: int
    at: int
    when: When


@dataclass(frozen=True, slots=True)
class _Ended:
    end: End
    write: str
    """At which the operator died."""
    writes: int
    """Until nothing but figures changed."""
    after: Snapshot


def tell_story() -> list[Told]:
    """Tell all chapters without a death."""
    told, snapshot = [], Snapshot()
    for chapter in STORY:
        ended: _Ended = _leap(_tell(chapter, snapshot))
        told.append(Told(chapter.name, snapshot, ended.end, ended.writes))
        snapshot = ended.after
    return told


def deaths(told: list[Told]) -> list[Death]:
    """All that there are: before and after each write of each chapter."""
    return [
        Death(chapter, at, when)
        for chapter, each in enumerate(told)
        for at in range(1, each.writes + 1)
        for when in get_args(When)
    ]


def problems(part: int, parts: int) -> list[str]:
    """Tell the story, and then a share of its chapters again, each with one death. Return all that went wrong."""
    told = tell_story()
    wrong = [f"{each.name} has no writes" for each in told if not each.writes]
    for death in deaths(told)[part::parts]:
        chapter = told[death.chapter]
        ended: _Ended = _leap(_tell(STORY[death.chapter], chapter.begin, death, chapter.end))
        found = _wrong(chapter.end, ended.end) if ended.write else ["there was no such write"]
        if found:
            wrong.append(f"{chapter.name}, killed {death.when} write {death.at}, {ended.write}: {found[:5]}")
    return wrong


def _leap(work: Any) -> Any:
    random.seed(SEED)  # the operator's own jitter
    logging.disable(logging.CRITICAL)
    try:
        return leap(work)
    finally:
        logging.disable(logging.NOTSET)


async def _tell(
    chapter: Chapter, begin: Snapshot, death: Death | None = None, expected: End | None = None
) -> _Ended:
    """The chapter ends when it is done, or is as expected, and stays so."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(begin.second)
    with clocks():
        world = World(SEED)
        _restore(world, begin)
        world.start()
        await asyncio.sleep(LASTING_SECONDS)
        at, when = (death.at, death.when) if death else (0, "before")
        fault = world.server.fault = Fault(at, when, world.operate)
        try:
            if (waiting := chapter.act(world)) is not None:
                await waiting
            lasting = LASTING_SECONDS if expected else CALM_SECONDS
            end, since, writes = _look(world), loop.time(), fault.seen
            while loop.time() < since + lasting and loop.time() < begin.second + LONGEST_SECONDS:
                await asyncio.sleep(1.0)
                world.check()
                now = _look(world)
                sound = not _wrong(expected, now) if expected else chapter.done(world) and now == end
                if not sound:
                    since, writes = loop.time(), fault.seen
                end = now
            assert expected or chapter.done(world), f"{chapter.name} has no end: {_conditions(end)}"
            after = begin if expected else _snapshot(world, loop.time())
            return _Ended(end, fault.write, writes, after)
        finally:
            await world.end()


def _conditions(end: End) -> list[str]:
    """Of runs and units."""
    return [
        f"{name}: {each['type']} {each['status']} {each['reason']}"
        for kind in ("TrainingRun", "LearnerUnit")
        for name, body in end[0][kind].items()
        for each in body["status"].get("conditions", [])
    ]


def _look(world: World) -> End:
    bodies: dict[str, list[Object]] = {kind: list(world.server.every(kind)) for kind in KINDS}
    return essence("ns", bodies), occasions(bodies["Event"])


def _wrong(expected: End, found: End) -> list[str]:
    """All that is not as expected. An Event may be lost with its process, but none is told twice."""
    more = [f"Event {occasion} too often" for occasion in found[1] - expected[1]]
    return [*differences(expected[0], found[0]), *more]


def _snapshot(world: World, second: float) -> Snapshot:
    server, cluster, syncer = world.server, world.cluster, world.syncer
    return copy.deepcopy(
        Snapshot(
            second,
            (server.objects, server.version, server.uids),
            (cluster.dead, cluster.due),
            (syncer.finished, syncer.step, syncer.saved, syncer.merged, syncer.known),
        )
    )


def _restore(world: World, snapshot: Snapshot) -> None:
    if not snapshot.server:
        return
    server, cluster, syncer = world.server, world.cluster, world.syncer
    copied = copy.deepcopy(snapshot)
    server.objects, server.version, server.uids = copied.server
    cluster.dead, cluster.due = copied.cluster
    syncer.finished, syncer.step, syncer.saved, syncer.merged, syncer.known = copied.syncer
