"""Drives a shard's state machine: events in, effects out to sessions, worker and disk.

Everything here runs on one event loop, except merges and journal writes. One worker thread does these in order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atoll_runtime.contract import RunContract
from atoll_runtime.interfaces import Arrays, Bucket
from atoll_runtime.payloads import MergeError
from atoll_runtime.protocol.effects import (
    Effect,
    Evict,
    Merge,
    Note,
    Persist,
    Publish,
    RecordCut,
    Release,
    Remember,
    RememberStep,
    SendPull,
    Tell,
    Wake,
)
from atoll_runtime.protocol.events import (
    CutEnded,
    CutOrdered,
    Event,
    FinalCut,
    Merged,
    MergeFailed,
    Persisted,
    Tick,
)
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.messages import Orders, Standing
from atoll_runtime.protocol.tape import Facts
from atoll_runtime.syncer.cuts import Cuts, Job
from atoll_runtime.syncer.hosts import Sessions
from atoll_runtime.syncer.latest import Latest
from atoll_runtime.syncer.recovery import Start, durable, meta_of, part_of
from atoll_runtime.syncer.state import Parts, Version, budget
from atoll_runtime.syncer.tape import Tape
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import Marker, Stop

LEVELS = {"refused": logging.WARNING, "suspect": logging.WARNING, "finished": logging.INFO}
"""Log level by the event of a note; all others are DEBUG."""

log = logging.getLogger(__name__)


class Driver:
    """A recovered shard at work. `failed` is set when the process must end."""

    def __init__(
        self,
        run: RunContract,
        whole: Layout,
        start: Start,
        store: Bucket,
        tape: Tape,
        byte_budget: int | None = None,
        arrays: Arrays | None = None,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """`unix`: Unix seconds, which the machine's clock shows when it starts."""
        self.run, self.machine, self.state = run, start.machine, start.state
        self.machine.rounds.series = start.state.series
        self.restarts = start.restarts
        self.journal, self.tape = start.journal, tape
        self.sessions = Sessions()
        self.news: Latest[Any] = Latest(self.machine.news)
        """Shard 0: the `Orders` that it announced last. Another shard: the `Standing` that it told shard 0 last."""
        width = codecs.DTYPES[run.outer.codec].itemsize
        self.parts = Parts(budget() if byte_budget is None else byte_budget, width)
        self.machine.rounds.capacity = self.parts.budget / width
        rules = start.machine.rules
        self.cuts = Cuts(
            run.checkpoint,
            store,
            start.newest_cut,
            rules.shards,
            self._missing if self.machine.coordinates else None,
            meta_of(run, whole),
            self._cut_ended,
        )
        self._store = store
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._ahead = unix() - self._loop.time()
        self._worker = ThreadPoolExecutor(1, "syncer-worker")
        if arrays is None:  # imported here because simulations run without its dependencies
            from atoll_runtime.syncer.arrays import NumpyArrays

            arrays = NumpyArrays(run.outer, start.state.layout)
        self.arrays = arrays
        self._fresh: dict[RoundId, Version] = {}
        self._written: asyncio.Future[None] | None = None
        self._acting = asyncio.Lock()
        """Held by what waits for the disk, so that it is done in the order in which the machine asked for it."""
        self._remembering: asyncio.Task[None] | None = None
        """The task that will write the machine's record; None when none waits to begin."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts the tape and the saving of cuts. A run that has reached its target continues to its end."""
        facts = Facts.of(self.run, self.machine.rules.shard, self.state.layout)
        self.tape.begin(facts, self.machine, self.state, self.now)
        self.spawn(self.cuts.serve())
        if self.cuts.newest is None:  # units are seeded from the first cut
            self.feed(CutOrdered(self.machine.cuts.newest.step))
        self.feed(Tick())

    async def close(self) -> None:
        """Ends sessions, lets the worker finish its writes, and closes the journal."""
        if self._timer is not None:
            self._timer.cancel()
        self.failed.cancel()
        self.sessions.send_all(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)
        await asyncio.to_thread(self.arrays.close)
        await asyncio.to_thread(self.tape.close)
        self.journal.close()

    def now(self) -> float:
        """Of the machine's clock: Unix seconds, which never step, so that times in its record outlive the process."""
        return self._loop.time() + self._ahead

    def feed(self, event: Event) -> None:
        """Hands an event to the machine, and carries out the effects that it asks for. A failure ends the process,
        because the machine is then ahead of the effects. The next process begins from the journal."""
        if self.failed.done():
            return
        now = self.now()
        try:
            effects = self.machine.handle(event, now)
            self.tape.event(event, now, effects)
            for effect in effects:
                self._carry_out(effect)
        except Exception as error:
            self._fail(error)
            raise

    async def durable(self) -> None:
        """Waits until all writes requested so far are on the disk."""
        if self._remembering is not None:
            await asyncio.shield(self._remembering)
        if self._written is not None:
            await asyncio.shield(self._written)

    async def _once_durable(self, act: Callable[[], None]) -> None:
        """Acts when all writes requested so far are on the disk, after what waits already."""
        async with self._acting:
            await self.durable()
            act()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Wake(at):  # first, because almost every event asks for one
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_later(max(0.0, at - self.now()), self.feed, Tick())
            case SendPull() | Publish() | Evict():
                self.sessions.carry_out(effect)
            case Tell(Orders() as orders):
                self.spawn(self._once_durable(lambda: self._tell(orders)))
            case Tell(news):
                self._tell(news)
            case Merge():
                self.spawn(self._merge(effect))
            case Release():
                self.parts.release(effect)
                self.sessions.carry_out(effect)
            case Persist(round_id, record):
                self._persist(round_id, self._facts(record))
            case RememberStep(step):
                self._write(functools.partial(self.journal.advance, step))
            case Remember():
                self._remembering = self._remembering or self.spawn(self._remember())
            case RecordCut(cut, record):
                self._record(cut, record)
            case Note(entry):
                log.log(LEVELS.get(entry["event"], logging.DEBUG), "%s", entry)

    async def _merge(self, effect: Merge) -> None:
        p = effect.round.fragment
        parts, old = self.parts.take(effect.members), self.state.fragments[p]
        self.tape.contributions(effect, parts)
        merge = functools.partial(
            self.arrays.merge, self.state.layout.fragments[p], effect.round.step, effect.members, parts, old
        )
        try:
            new = await self._loop.run_in_executor(self._worker, merge)
        except MergeError as error:
            log.error("the merge of %s was given up: %s", effect.round, error)
            self.feed(MergeFailed(effect.round, str(error)))
        else:
            self._fresh[effect.round] = new
            self.tape.merged(effect.round, new.theta, new.momentum)
            self.feed(Merged(effect.round))

    async def _remember(self) -> None:
        """Writes the machine's record after the write under way. After a restart hundreds of units join meanwhile; this
        one write covers them all."""
        if self._written is not None:
            await asyncio.shield(self._written)
        self._remembering = None
        self._write(functools.partial(self.journal.remember, self._facts(self.machine.record())))

    def _persist(self, round_id: RoundId, facts: dict[str, Any]) -> None:
        """Hands the write to the worker at once, in the machine's order, so that no record mentions a later merge."""
        new = self._fresh.pop(round_id)
        written = self._write(functools.partial(self.journal.merge, round_id.fragment, new, facts))

        async def publish() -> None:
            await written
            self.state.fragments[round_id.fragment] = new
            self.feed(Persisted(round_id))

        self.spawn(publish())

    def _record(self, cut: CutId, record: Mapping[str, Any]) -> None:
        """Takes the durable fragments, which are never modified, and submits them to be saved."""
        fragments = tuple(version.bare for version in self.state.fragments)
        layout, rules = self.state.layout, self.machine.rules
        run, lineage = self.run, self.journal.lineage
        job = Job(cut, lambda: part_of(run, rules, layout, cut.step, fragments, record, lineage))
        # The shard must remember every cut that is in the bucket.
        self.spawn(self._once_durable(lambda: self.cuts.submit(job)))

    def _cut_ended(self, cut: CutId, whole: bool, own: bool) -> None:
        if cut.final and whole and self.machine.coordinates:
            self.feed(FinalCut(f"{self._store.uri}/global/{cut.step}"))
        else:
            self.feed(CutEnded(cut, whole, own))
        if not whole and self.cuts.newest is None:  # units are seeded from the first complete cut
            self.feed(CutOrdered(cut.step))

    def _tell(self, news: Orders | Standing) -> None:
        before = self.news.value
        self.news.set(news)
        if isinstance(news, Orders):
            if news.cut > before.cut:
                self.sessions.send_all(Marker(news.cut))
            if news.final and not before.final:
                self.sessions.send_all(Stop(self.machine.step))

    def _missing(self) -> list[int]:
        """Shards that have not reported that their part of the newest cut is saved."""
        parts = self.machine.cuts.parts
        return [shard for shard in range(1, self.machine.rules.shards) if shard not in parts]

    def _facts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return durable(record, self.restarts, self.cuts.newest)

    def _write(self, job: Callable[[], None]) -> asyncio.Future[None]:
        """Hands a write to the worker, which does writes in order. A volume that fails ends the process."""
        self._written = self._loop.run_in_executor(self._worker, job)
        self._written.add_done_callback(self._check)
        return self._written

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task. If it fails, the process ends."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._check)
        return task

    def _check(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
