"""The pods of one namespace as a watch reports them, with the times of their changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from atoll_bench.client import Client, url
from atoll_cli.errors import CommandError
from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_COMPONENT, LABEL_UNIT, LEARNER


@dataclass(slots=True)
class Life:
    """One pod. Times are the monotonic seconds at which the watch reported a change; None if it has not yet."""

    name: str
    unit: str
    incarnation: int
    """From its annotation."""
    created: float
    told: float
    running: float | None = None
    left: float | None = None
    """When it ended, or its deletion was requested."""


class Pods:
    """Pods of learners by uid. Pods of the syncer are ignored."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.alive = 0
        self.running = 0
        self._changed = asyncio.Event()
        self._version = ""

    def see(self, line: bytes, at: float) -> None:
        """Processes one event of the watch. Raises `CommandError` if the watch has ended with an error."""
        event = msgspec.json.decode(line)
        if event["type"] == "ERROR":
            raise CommandError(f"the watch of pods says {line[:300]!r}")
        pod = event["object"]
        metadata = pod["metadata"]
        self._version = metadata["resourceVersion"]
        labels = metadata.get("labels", {})
        if labels.get(LABEL_COMPONENT) != LEARNER:
            return
        uid, incarnation = metadata["uid"], int(metadata["annotations"][ANNOTATION_INCARNATION])
        life = self.lives.get(uid)
        if life is None:
            life = self.lives[uid] = Life(metadata["name"], labels[LABEL_UNIT], incarnation, at, at)
            self.alive += 1
        elif incarnation > life.incarnation:
            life.incarnation, life.told = incarnation, at
        phase = pod["status"].get("phase")
        ended = event["type"] == "DELETED" or phase in ("Failed", "Succeeded")
        over = ended or "deletionTimestamp" in metadata
        if over and life.left is None:
            life.left = at
            self.alive -= 1
            self.running -= life.running is not None
        elif phase == "Running" and life.running is None and life.left is None:
            life.running = at
            self.running += 1
        self._changed.set()

    async def follow(self, client: Client, namespace: str) -> None:
        """Watches until cancelled. The API server ends the watch of a slow reader. Raises `CommandError` if the watch
        cannot be resumed where it ended."""
        while True:
            path = f"{url('pods', namespace)}?watch=1&timeoutSeconds=3600&resourceVersion={self._version}"
            async for line in client.watch(path):
                self.see(line, time.monotonic())

    async def until(self, what: str, check: Callable[[], bool], seconds: float) -> None:
        """Waits until an event makes `check` true. Raises `CommandError` after `seconds`."""
        deadline = time.monotonic() + seconds
        while not check():
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                state = f"{self.alive} pods alive, {self.running} of them running"
                raise CommandError(f"not within {seconds:.0f} s: {what}; {state}") from None

    async def until_running(self, count: int, seconds: float) -> None:
        """Waits until `count` pods run and no other pod is alive."""
        await self.until(f"{count} pods run", lambda: self.alive == self.running == count, seconds)

    def born_since(self, start: float) -> list[Life]:
        return [life for life in self.lives.values() if life.created >= start]

    def living(self) -> list[Life]:
        """Pods that have not left, by name."""
        return sorted((life for life in self.lives.values() if life.left is None), key=lambda life: life.name)

    def last_running(self) -> float:
        """When the last of the live pods began to run."""
        return max(life.running for life in self.living() if life.running is not None)

    def units(self) -> dict[str, tuple[int, int]]:
        """The newest incarnation and the number of its running pods, by unit."""
        found: dict[str, tuple[int, int]] = {}
        for life in self.living():
            incarnation, hosts = found.get(life.unit, (0, 0))
            if life.running is not None and life.incarnation >= incarnation:
                found[life.unit] = life.incarnation, hosts + 1 if life.incarnation == incarnation else 1
        return found


def touched(lives: Iterable[Life], units: Iterable[str], since: float) -> tuple[int, int]:
    """Returns how many pods of these units, and of others, were created or left from `since` on."""
    wanted = frozenset(units)
    found = [life for life in lives if max(life.created, life.left or 0.0) >= since]
    ours = sum(life.unit in wanted for life in found)
    return ours, len(found) - ours
