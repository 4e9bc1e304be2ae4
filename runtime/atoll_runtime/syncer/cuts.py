"""A shard's part of each consistent cut, saved off the event loop; the coordinator makes the cut whole."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll_runtime.contract import CheckpointSpec
from atoll_runtime.interfaces import Bucket
from atoll_runtime.payloads import Part, StoreError
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.syncer.backoff import Backoff

log = logging.getLogger(__name__)

GATHER_SECONDS = 120.0
"""Patience with a cut whose parts are not all there. The final one is never given up, for it ends the run."""
POLL_SECONDS = (0.05, 2.0)
"""First and longest wait between two looks at what the other shards have told of their parts."""


@dataclass(frozen=True)
class Job:
    """A recorded cut, to be saved. `make` copies the arrays, on another thread."""

    cut: CutId
    make: Callable[[], Part]


class Cuts:
    """Saves one cut at a time. A bucket that fails is tried again; training goes on."""

    def __init__(
        self,
        spec: CheckpointSpec,
        store: Bucket,
        newest: int | None,
        shards: int,
        missing: Callable[[], list[int]] | None,
        meta: Callable[[], Mapping[str, Any]],
        ended: Callable[[CutId, bool, bool], None],
    ) -> None:
        """All three are called on the event loop.

        Args:
            missing: other shards whose part of the newest cut does not stand. None: this is not shard 0, which alone
                makes a cut whole.
            meta: of the manifest.
            ended: when a cut is whole (this shard's part, where it is not shard 0), or was given up; see `CutEnded`.
        """
        self.newest, self.error = newest, ""
        self._spec, self._store, self._shards, self._missing = spec, store, shards, missing
        self._meta, self._ended = meta, ended
        self._next: Job | None = None
        self._arrived = asyncio.Event()

    def submit(self, job: Job) -> None:
        """To be saved now; one that is under way is given up for it."""
        self._next = job
        self._arrived.set()

    async def serve(self) -> None:
        """Saves what is submitted, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            job, self._next = self._next, None
            if job is None:
                continue
            saved = await self._save(job)
            whole = saved is not None and await self._whole(job)
            if whole:
                self.newest, self.error = job.cut.step, ""
                state = "is whole" if self._missing else "has this shard's part"
                log.info("checkpoint of global step %d %s", job.cut.step, state)
            self._ended(job.cut, whole, bool(saved))

    async def _save(self, job: Job) -> bool | None:
        """This shard's part, until it stands, see `_save_now`; None when a newer cut was submitted first."""
        backoff = Backoff(1.0, 60.0)
        while self._next is None:
            try:
                return await asyncio.to_thread(self._save_now, job)
            except StoreError as error:
                self._fail(f"checkpoint not saved, training goes on: {error}", str(error))
                await backoff.wait()
        return None

    async def _whole(self, job: Job) -> bool:
        """Waits until every part stands, and writes the manifest. False when given up."""
        if self._missing is None:
            return True
        clock = asyncio.get_running_loop().time
        begun = clock()
        backoff = Backoff(*POLL_SECONDS)
        while self._next is None:
            missing, step = self._missing(), job.cut.step
            waiting = f"no part of shard {', '.join(map(str, missing))} for the cut of global step {step}"
            if not missing:
                try:
                    meta = dict(self._meta())  # on the loop, which writes to it
                    await asyncio.to_thread(self._store.complete, step, self._shards, meta)
                except StoreError as error:
                    waiting = str(error)
                else:
                    await asyncio.to_thread(self._prune, step)
                    return True
            if not job.cut.final and clock() - begun > GATHER_SECONDS:
                self._fail(f"checkpoint of global step {step} given up: {waiting}", waiting)
                return False
            await backoff.wait()
        return False

    def _save_now(self, job: Job) -> bool:
        """False where the cut is complete already, with what this shard had before it lost its journal."""
        part = job.make()
        saved = self._store.save_part(part)
        if saved and job.cut.final:
            verify(part, self._store.read_part(part.step, part.shard, part.shards), self._store.uri)
        return saved

    def _prune(self, saved: int) -> None:
        """Removes cuts before the one that was saved. What cannot be removed harms none that stands; the next cut
        tries again."""
        try:
            self._store.prune(self._spec.keep, saved, time.time())
        except StoreError as error:
            log.warning("older checkpoints were not removed, the next cut tries again: %s", error)

    def _fail(self, text: str, error: str) -> None:
        if self.error != error:
            log.error("%s", text)
        self.error = error


def verify(part: Part, found: Part, uri: str) -> None:
    """Raises `StoreError` when what was read back is not what was saved."""
    if found.versions != part.versions or found.tensors.keys() != part.tensors.keys():
        raise StoreError(f"{uri}: step {part.step} read back is another cut: versions {found.versions}")
    for name, own in part.tensors.items():
        if not np.array_equal(own.theta, found.tensors[name].theta):
            raise StoreError(f"{uri}: step {part.step} read back differs in {name}")
