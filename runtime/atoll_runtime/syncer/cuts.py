"""Global checkpoints: when one is due, its save off the event loop, and the final one, verified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np

from atoll_runtime.checkpoint import Cut, StoreError
from atoll_runtime.contract import CheckpointSpec
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.syncer.recovery import Store

log = logging.getLogger(__name__)


class Cuts:
    """Saves in the background; a bucket that fails is tried again with the newest cut; training goes on."""

    def __init__(
        self,
        spec: CheckpointSpec,
        store: Store,
        newest: int | None,
        snapshot: Callable[[], Callable[[], Cut]],
    ) -> None:
        """`snapshot` fixes the state, on the event loop; what it gives makes the cut, on another thread."""
        self.newest, self.error = newest, ""
        self._spec, self._store, self._snapshot = spec, store, snapshot
        self._due = asyncio.Event()
        self._marked = newest or 0
        self._saving = asyncio.Lock()

    def consider(self, step: int) -> None:
        """Marks a cut as due when `step` has passed another interval."""
        if step // self._spec.interval_steps > self._marked // self._spec.interval_steps:
            self._marked = step
            self._due.set()

    async def serve(self) -> None:
        """Saves what is due, until cancelled."""
        backoff = Backoff(1.0, 60.0)
        while True:
            await self._due.wait()
            self._due.clear()
            if await self._attempt(final=False) is None:
                await backoff.wait()
                self._due.set()
            else:
                backoff.reset()

    async def final(self) -> str:
        """Saves the last cut, reads it back, and gives its URI; tries until it succeeds."""
        backoff = Backoff(1.0, 60.0)
        while (step := await self._attempt(final=True)) is None:
            await backoff.wait()
        return f"{self._store.uri}/global/{step}"

    async def _attempt(self, *, final: bool) -> int | None:
        async with self._saving:
            make = self._snapshot()
            try:
                step = await asyncio.to_thread(self._save, make, final)
            except StoreError as error:
                self.error = str(error)
                log.error("checkpoint not saved, training goes on: %s", error)
                return None
        self.newest, self.error = step, ""
        log.info("checkpoint of global step %d saved%s", step, " and verified" if final else "")
        return step

    def _save(self, make: Callable[[], Cut], final: bool) -> int:
        cut = make()
        self._store.save(cut)
        if final:
            verify(cut, self._store.load(cut.step), self._store.uri)
        self._store.prune(self._spec.keep)
        return cut.step


def verify(cut: Cut, found: Cut, uri: str) -> None:
    """Raises `StoreError` when what was read back is not what was saved."""
    if found.versions != cut.versions or found.theta.keys() != cut.theta.keys():
        raise StoreError(f"{uri}: step {cut.step} read back is another cut: versions {found.versions}")
    for name, theta in cut.theta.items():
        if not np.array_equal(theta, found.theta[name]):
            raise StoreError(f"{uri}: step {cut.step} read back differs in {name}")
