"""Drives a shard's state machine: events come from sessions and timers, effects go to sessions, worker and disk.

Everything here runs on one event loop, but merges and journal writes, which one worker thread does in order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atoll_runtime.contract import RunContract
from atoll_runtime.sync.buffers import Buffers
from atoll_runtime.sync.events import (
    CutEnded,
    CutId,
    CutOrdered,
    Declined,
    Effect,
    Event,
    Evict,
    FinalCut,
    Left,
    Marked,
    Merge,
    Merged,
    MergeFailed,
    Note,
    Persist,
    Persisted,
    Publish,
    RecordCut,
    Release,
    Remember,
    RoundId,
    SendClock,
    SendMarkers,
    SendPull,
    StopAll,
    Tick,
    Wake,
)
from atoll_runtime.sync.fragments import MOST_PADDING, Layout
from atoll_runtime.sync.machine import COORDINATOR
from atoll_runtime.sync.merge import MergeError, merge_step
from atoll_runtime.sync.tape import Facts
from atoll_runtime.syncer import hosts
from atoll_runtime.syncer.beginnings import Beginnings
from atoll_runtime.syncer.cuts import Cuts, Job
from atoll_runtime.syncer.parts import Held, Parts, budget, gradients, read, room
from atoll_runtime.syncer.recovery import Start, Store, durable, meta_of, part_of
from atoll_runtime.syncer.sessions import Session, Sessions
from atoll_runtime.syncer.state import Version
from atoll_runtime.syncer.tape import Snapshot, Tape
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    Down,
    Fenced,
    FetchHead,
    FetchRequest,
    Hello,
    Mark,
    PeerAddress,
    PushHead,
    PushReply,
    Refused,
    Report,
    Stop,
    Up,
    Welcome,
)
from atoll_runtime.transport.transport import Peer

log = logging.getLogger(__name__)

HELLO_SECONDS = 15.0
VERSION_BYTES = 12
"""An element of a version, at most: Θ, momentum and the wire, with room to spare."""


class Service:
    """The endpoint of a recovered shard. `failed` is set when the process must end."""

    def __init__(
        self,
        run: RunContract,
        whole: Layout,
        start: Start,
        store: Store,
        tape: Tape,
        byte_budget: int | None = None,
    ) -> None:
        self.run, self.machine, self.state = run, start.machine, start.state
        self.whole = whole
        self.machine.rounds.lineage = start.journal.lineage
        self.restarts, self.message = start.restarts, start.message
        self.journal, self.tape = start.journal, tape
        self.sessions = Sessions()
        self.parts = Parts(budget() if byte_budget is None else byte_budget)
        self.bytes_in = self.bytes_out = 0
        self.beginnings = Beginnings()
        rules = start.machine.rules
        self.cuts = Cuts(
            run.checkpoint,
            store,
            start.newest_cut,
            rules.shards,
            rules.shard == COORDINATOR,
            lambda: meta_of(run, whole, self.machine.cuts.clocks()),
            self._cut_ended,
        )
        self._store = store
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, "syncer-worker")
        self._helpers = len(os.sched_getaffinity(0)) - 1
        self._mergers = ThreadPoolExecutor(max(1, self._helpers), "syncer-merge")
        largest = max(fragment.size for fragment in start.state.layout.fragments)
        self._buffers = Buffers(run.outer.overlap * VERSION_BYTES * largest)
        self._fresh: dict[RoundId, Version] = {}
        self._written: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to save cuts; a run that is at its target goes on to its end."""
        self.tape.begin(Facts.of(self.run, self.machine.rules.shard, self.state.layout), self._tape_snapshot)
        self._spawn(self.cuts.serve())
        if self.cuts.newest is None:  # units are seeded from it
            self._feed(CutOrdered(CutId(self.machine.orderable)))
        self._feed(Tick())

    async def close(self) -> None:
        """Ends sessions, lets the worker finish what it is writing, closes the journal."""
        if self._timer is not None:
            self._timer.cancel()
        self.failed.cancel()
        self.sessions.end_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)
        await asyncio.to_thread(self._mergers.shutdown)
        await asyncio.to_thread(self.tape.close)
        self.journal.close()

    async def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """See `Endpoint`."""
        first = await asyncio.wait_for(anext(incoming, None), HELLO_SECONDS)
        if not isinstance(first, Hello):
            yield Refused("a session starts with Hello")
            return
        refusal = hosts.refusal(self.run, self.state.layout, peer, first, self.machine.units)
        if refusal is not None:
            log.warning("refused %s: %s", peer.address, refusal.reason)
            yield refusal
            return
        known = self.machine.units.get(first.unit)
        if known is not None and first.incarnation < known.incarnation:
            log.warning(
                "fenced incarnation %d of %s: %d is registered",
                first.incarnation,
                first.unit,
                known.incarnation,
            )
            yield Fenced(known.incarnation)
            return
        session = Session(first.unit, first.incarnation, first.host)
        self.sessions.add(session)
        reader: asyncio.Task[None] | None = None
        try:
            self._feed(hosts.joined(first))
            await self._durable()
            if self.machine.final:
                yield self._stop(self.machine.step)
                return
            unit = self.machine.units[first.unit]
            yield Welcome(
                self.journal.lineage,
                self.machine.step,
                self.state.versions,
                unit.merged_cursor,
                unit.merged_step,
                self.machine.cuts.newest,
            )
            reader = asyncio.create_task(self._read(session, incoming))
            while (message := await session.outgoing.get()) is not None:
                yield message
        finally:
            if reader is not None:
                reader.cancel()
            if self.sessions.remove(session):
                self._feed(Left(session.unit, session.incarnation, session.host))

    def admit(self, peer: Peer, head: PushHead) -> str:
        """See `Endpoint`."""
        foreign = hosts.stranger(self.run, peer, head.unit)
        if foreign:
            return foreign
        if head.codec != self.state.codec or head.size != codecs.pushed_size(
            head.stop - head.start, head.codec
        ):
            return (
                f"{head.size} bytes of {head.codec} for [{head.start}, {head.stop}), not {self.state.codec}"
            )
        part = hosts.part_of(head)
        refusal = self.machine.admit(part) or self.parts.reserve(room(head))
        if refusal:
            self._feed(Declined(part, refusal))
        return refusal

    async def deliver(self, peer: Peer, head: PushHead, body: memoryview | None) -> PushReply:
        """See `Endpoint`."""
        if body is None:
            self.parts.unreserve(room(head))
            return PushReply(False, "the body did not arrive whole")
        self.bytes_in += len(body)
        fragment = self.state.layout.fragments[head.round.fragment]
        part, taken = hosts.part_of(head), False
        try:
            held, found = await asyncio.to_thread(read, fragment, head, body)
            refusal = self.machine.admit(part) if found.finite else "the outer gradient is not finite"
            if not refusal:
                self.parts.hold(Held(head, held, found))
                taken = True
        finally:  # it is cancelled when the client goes
            if not taken:
                self.parts.unreserve(room(head))
        if refusal:
            self._feed(Declined(part, refusal))
            return PushReply(False, refusal)
        self._feed(part)
        return PushReply(True)

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview] | str:
        """See `Endpoint`."""
        foreign = hosts.stranger(self.run, peer, request.unit)
        if foreign:
            return foreign
        if not 0 <= request.fragment < len(self.state.fragments) or request.codec != self.state.codec:
            return f"fragment {request.fragment} in {request.codec} does not exist"
        p, start, stop = request.fragment, request.start, request.stop
        found = self.state.fragments[p]
        if not 0 <= start < stop <= found.theta.size + MOST_PADDING:
            return f"range: [{start}, {stop}) of {found.theta.size} elements, filled up by {MOST_PADDING} at most"
        base, body = self.state.fetch(p, start, stop, request.held, request.series)
        self.bytes_out += body.nbytes
        cut = self.machine.cuts.newest
        return FetchHead(p, found.version, body.nbytes, base, self.state.series, cut), body

    def directory(self, peer: Peer, request: DirectoryRequest) -> DirectoryReply | str:
        """See `Endpoint`."""
        foreign = hosts.stranger(self.run, peer, request.unit)
        if foreign:
            return foreign
        peers = [
            PeerAddress(unit.name, unit.incarnation, tuple(unit.addresses[h] for h in sorted(unit.addresses)))
            for unit in self.machine.live(self.now())
            if unit.name != request.unit and unit.contributions and all(unit.addresses.values())
        ]
        return DirectoryReply(self.journal.lineage, self.state.versions, tuple(peers))

    def cut(self, step: int) -> None:
        """Records a cut of all that is durable; the report says when it stands in the bucket."""
        self._feed(CutOrdered(CutId(step)))

    def now(self) -> float:
        """The machine's clock."""
        return time.monotonic()

    def _stop(self, step: int) -> Stop:
        return Stop(step, self.machine.clock, self.machine.cuts.newest)

    async def _read(self, session: Session, incoming: AsyncIterator[Up]) -> None:
        try:
            async for message in incoming:
                if isinstance(message, Report):
                    try:
                        reported = hosts.reported(session, message)
                        heard = hosts.heard(message, self.machine.rules.shards)
                    except ValueError as error:
                        log.warning(
                            "refused a report of host %d of %s: %s", session.host, session.unit, error
                        )
                        continue
                    if heard is not None:
                        self._feed(heard)
                    if session.host == 0:  # it speaks for its unit
                        self._feed(reported)
                    self.beginnings.told(session.unit, session.incarnation, session.host, message.beginning)
                elif isinstance(message, Mark):
                    self._feed(
                        Marked(session.unit, session.incarnation, session.host, message.cut, message.trained)
                    )
        finally:
            session.send(None)

    def _feed(self, event: Event) -> None:
        if self.failed.done():
            return
        now = self.now()
        effects = self.machine.handle(event, now)
        self.tape.event(event, now, effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendPull() | Publish() | SendMarkers() | SendClock() | Evict():
                self.sessions.carry_out(effect)
            case Merge():
                self._spawn(self._merge(effect))
            case Release(round_id, unit):
                self.parts.release(round_id, unit)
                self.sessions.carry_out(effect)
            case Persist(round_id, record):
                self._persist(round_id, self._facts(record))
            case Remember(record):
                self._write(functools.partial(self.journal.remember, self._facts(record)))
            case RecordCut(cut, record):
                self._record(cut, record)
            case StopAll(step):
                self._spawn(self._stop_all(step))
            case Note(entry):
                log.log(logging.WARNING if entry["event"] == "refused" else logging.DEBUG, "%s", entry)
            case Wake(at):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_later(max(0.0, at - self.now()), self._feed, Tick())

    async def _merge(self, effect: Merge) -> None:
        p = effect.round.fragment
        parts, old, spec = self.parts.take(effect.round), self.state.fragments[p], self.run.outer
        fragment = self.state.layout.fragments[p]

        bodies = {key: (held.head.start, held.body) for key, held in parts.items()}
        self.tape.contributions(effect.round, effect.members, bodies)

        def compute() -> Version:
            merged = merge_step(
                fragment,
                gradients(effect.members, parts),
                old.theta,
                old.momentum,
                codec=spec.codec,
                rule=spec.merge,
                learning_rate=spec.learning_rate,
                outer_momentum=spec.momentum,
                buffers=self._buffers,
                pool=self._mergers,
                helpers=self._helpers,
            )
            return old.next(effect.round.step, merged, spec.codec, self._mergers)

        try:
            new = await self._loop.run_in_executor(self._worker, compute)
        except MergeError as error:
            log.error("the merge of %s was given up: %s", effect.round, error)
            self._feed(MergeFailed(effect.round, str(error)))
        else:
            self._fresh[effect.round] = new
            self.tape.merged(effect.round, new.theta, new.momentum)
            self._feed(Merged(effect.round, time.time()))

    def _persist(self, round_id: RoundId, facts: dict[str, Any]) -> None:
        """Hands the write over at once: in the machine's order, no record tells of a later merge."""
        new = self._fresh.pop(round_id)
        written = self._write(functools.partial(self.journal.merge, round_id.fragment, new, facts))

        async def publish() -> None:
            await written
            self.state.fragments[round_id.fragment] = new
            self._feed(Persisted(round_id))

        self._spawn(publish())

    def _record(self, cut: CutId, record: Mapping[str, Any]) -> None:
        """Fixes the durable fragments, which are never written to, and has them saved."""
        fragments, layout, rules = self.state.snapshot(), self.state.layout, self.machine.rules
        run, lineage = self.run, self.journal.lineage
        job = Job(
            cut, record["merges"], lambda: part_of(run, rules, layout, cut.step, fragments, record, lineage)
        )

        async def submit() -> None:
            await self._durable()  # a cut that stands in the bucket must not be forgotten by its shard
            self.cuts.submit(job)

        self._spawn(submit())

    def _tape_snapshot(self) -> Snapshot:
        return Snapshot(self.machine, self.now(), self.state.snapshot())

    def _cut_ended(self, cut: CutId, whole: bool) -> None:
        if cut.final and whole:
            self._feed(FinalCut(f"{self._store.uri}/global/{cut.step}"))
        else:
            self._feed(CutEnded(cut, whole))

    async def _stop_all(self, step: int) -> None:
        await self._durable()
        log.info("finished at global step %d: %s", step, self.machine.final)
        self.sessions.send_all(self._stop(step))

    def _facts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return durable(record, self.restarts, self.cuts.newest)

    def _write(self, job: Callable[[], None]) -> asyncio.Future[None]:
        """Hands a write to the worker, which does them in order. A volume that fails ends the process."""
        self._written = self._loop.run_in_executor(self._worker, job)
        self._written.add_done_callback(self._check)
        return self._written

    async def _durable(self) -> None:
        """Waits until everything handed to the disk so far is there."""
        if self._written is not None:
            await asyncio.shield(self._written)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._check)

    def _check(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)
