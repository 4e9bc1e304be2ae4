"""Plays chapters of a run's story from a snapshot, with and without the death of the operator at one of its writes."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from functools import partial

from crash_story import STORY, Chapter, facts
from memory_apiserver import Fault, Object, When
from memory_world import World, played
from worldview import differences

SEED = 20261124
CALM_SECONDS = 6.0
"""A chapter without a death ends when the world has not changed for this long."""
LASTING_SECONDS = 3.0
"""A chapter with a death ends when the world has been as expected for this long. An action that is done twice is done
within this time."""
LONGEST_SECONDS = 900.0
STATE = {"server": ("objects", "version", "uids"), "cluster": ("dead", "due")}
STATE |= {"syncer": ("finished", "step", "saved", "merged", "known")}
"""Attributes of a world's parts that a snapshot keeps."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A world at rest, from which a chapter can be played many times."""

    second: float = 0.0
    state: bytes = pickle.dumps(())
    """Pickled, because it is restored for each death."""

    @classmethod
    def take(cls, world: World) -> Snapshot:
        parts = [(part, name) for part, names in STATE.items() for name in names]
        state = [(part, name, getattr(getattr(world, part), name)) for part, name in parts]
        return cls(asyncio.get_running_loop().time(), pickle.dumps(state))

    async def restore(self, world: World) -> None:
        await asyncio.sleep(self.second)
        for part, name, value in pickle.loads(self.state):
            setattr(getattr(world, part), name, value)


@dataclass(frozen=True, slots=True)
class Told:
    """A chapter: where it began, and how it ended."""

    begin: Snapshot
    end: Object
    """Its last `facts`."""
    write: str
    """The write at which the operator died; empty without a death."""
    writes: int
    """Number of writes until no fact changed any more."""
    after: Snapshot


def problems(part: int, parts: int) -> list[str]:
    """Play the story. Then play a share of all deaths: each is a chapter in which the operator dies before or after one
    of its writes. Return all that went wrong."""
    snapshot, wrong, deaths = Snapshot(), [], list[tuple[Chapter, Told, int, When]]()
    for chapter in STORY:
        told = played(SEED, partial(_tell, chapter=chapter, begin=snapshot))
        snapshot = told.after
        wrong += [] if told.writes else [f"{chapter.name} has no writes"]
        numbers = range(1, told.writes + 1)
        deaths += [(chapter, told, at, when) for at in numbers for when in ("before", "after")]
    for chapter, told, at, when in deaths[part::parts]:
        again = partial(_tell, chapter=chapter, begin=told.begin, at=at, when=when, wanted=told.end)
        ended = played(SEED, again)
        found = [*differences(told.end, ended.end)] if ended.write else ["there was no such write"]
        if found:
            wrong.append(f"{chapter.name}, killed {when} write {at}, {ended.write}: {found[:5]}")
    return wrong


async def _tell(
    world: World,
    chapter: Chapter,
    begin: Snapshot,
    at: int = 0,
    when: When = "before",
    wanted: Object | None = None,
) -> Told:
    """Play a chapter. It ends when it is done, or is as `wanted`, and stays so."""
    await begin.restore(world)
    world.start()
    loop, fault = asyncio.get_running_loop(), Fault(at, when, world.operate)
    world.server.fault = fault
    if (waiting := chapter.act(world)) is not None:
        await waiting
    end, since, writes, version, restless = facts(world), loop.time(), fault.seen, 0, True
    lasting = LASTING_SECONDS if wanted else CALM_SECONDS
    while loop.time() < since + lasting and loop.time() < begin.second + LONGEST_SECONDS:
        await asyncio.sleep(1.0)
        world.check()
        now = end if (still := world.server.version == version) else facts(world)
        if not (wanted and still):
            restless = now != wanted if wanted else now != end or not chapter.done(world)
        if restless:
            since, writes = loop.time(), fault.seen
        end, version = now, world.server.version
    shown = [(str(key), world.server.objects[key].get("status")) for key in world.planned()]
    assert wanted or chapter.done(world), f"{chapter.name} has no end: {shown}"
    return Told(begin, end, fault.write, writes, begin if wanted else Snapshot.take(world))
