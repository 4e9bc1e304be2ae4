"""Saves a shard's part of each consistent cut, off the event loop. The coordinator makes the cut whole."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll_runtime.contract import CheckpointSpec
from atoll_runtime.interfaces import Bucket
from atoll_runtime.payloads import Part, StoreError
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.syncer.latest import Latest

log = logging.getLogger(__name__)

GATHER_SECONDS = 120.0
"""Seconds after which a cut with missing parts is given up. The final cut, which ends the run, is never given up."""
POLL_SECONDS = (0.05, 2.0)
"""First and longest wait between two checks of which parts the other shards have reported."""


@dataclass(frozen=True)
class Job:
    """A recorded cut to save. `make` copies the arrays; it runs on another thread."""

    cut: CutId
    make: Callable[[], Part]


class Cuts:
    """Saves one cut at a time. If the bucket fails, it retries; training continues."""

    def __init__(
        self,
        spec: CheckpointSpec,
        store: Bucket,
        newest: int | None,
        shards: int,
        missing: Callable[[], list[int]] | None,
        meta: dict[str, Any],
        ended: Callable[[CutId, bool, bool], None],
    ) -> None:
        """Both functions are called on the event loop.

        Args:
            missing: returns the other shards whose part of the newest cut is not saved. None except on shard 0,
                which alone makes a cut whole.
            meta: the facts of the manifest.
            ended: is called when a cut is whole (except on shard 0: when its own part is saved) or was given up; see
                `CutEnded`.
        """
        self.newest, self.error = newest, ""
        self._spec, self._store, self._shards, self._missing = spec, store, shards, missing
        self._meta, self._ended = meta, ended
        self._submitted: Latest[Job | None] = Latest(None)
        """A job holds the arrays of its cut, so only the newest one waits."""

    def submit(self, job: Job) -> None:
        """Submits a cut to be saved now. A cut that is being saved is given up for it."""
        self._submitted.set(job)

    async def serve(self) -> None:
        """Saves submitted cuts until cancelled."""
        job: Job | None = None
        while True:
            job = await self._submitted.after(job)
            assert job is not None
            saved = await self._save(job)
            whole = saved is not None and await self._whole(job)
            if whole:
                self.newest, self.error = job.cut.step, ""
                state = "is whole" if self._missing else "has this shard's part"
                log.info("checkpoint of global step %d %s", job.cut.step, state)
            self._ended(job.cut, whole, bool(saved))

    async def _save(self, job: Job) -> bool | None:
        """Retries `_save_now` until it succeeds, and returns its result; None when a newer cut was submitted first."""
        backoff = Backoff(1.0, 60.0)
        while self._submitted.value is job:
            try:
                return await asyncio.to_thread(self._save_now, job)
            except StoreError as error:
                self._fail(f"checkpoint not saved, training goes on: {error}", str(error))
                await backoff.wait()
        return None

    async def _whole(self, job: Job) -> bool:
        """Waits until every part is saved, and writes the manifest. Returns False when it gave up."""
        if self._missing is None:
            return True
        clock = asyncio.get_running_loop().time
        begun = clock()
        backoff = Backoff(*POLL_SECONDS)
        while self._submitted.value is job:
            missing, step = self._missing(), job.cut.step
            waiting = f"no part of shard {', '.join(map(str, missing))} for the cut of global step {step}"
            if not missing:
                try:
                    await asyncio.to_thread(self._store.complete, step, self._shards, self._meta)
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
        """Saves this shard's part. Returns False if the cut was complete already, with the part that this shard saved
        before it lost its journal."""
        self._store.ready()  # the copy would only take memory
        part = job.make()
        saved = self._store.save_part(part)
        if saved and job.cut.final:
            verify(part, self._store.read_part(part.step, part.shard, part.shards), self._store.uri)
        return saved

    def _prune(self, saved: int) -> None:
        """Removes cuts before the one that was saved. A failure harms no complete cut, and the next cut tries again."""
        try:
            self._store.prune(self._spec.keep, saved, time.time())
        except StoreError as error:
            log.warning("older checkpoints were not removed, the next cut tries again: %s", error)

    def _fail(self, text: str, error: str) -> None:
        if self.error != error:
            log.error("%s", text)
        self.error = error


def verify(part: Part, found: Part, uri: str) -> None:
    """Raises `StoreError` if the part that was read back differs from the one that was saved."""
    if found.versions != part.versions or found.tensors.keys() != part.tensors.keys():
        raise StoreError(f"{uri}: step {part.step} read back is another cut: versions {found.versions}")
    for name, own in part.tensors.items():
        if not np.array_equal(own.theta, found.tensors[name].theta):
            raise StoreError(f"{uri}: step {part.step} read back differs in {name}")
