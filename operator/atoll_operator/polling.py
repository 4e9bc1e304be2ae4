"""Polls the syncer and the evaluator of each active run for their reports, over HTTPS with the run's certificates."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from atoll_operator.kube.cache import Key
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import back_off
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.conditions import clip
from atoll_operator.plan.pods.names import evaluator_host, shard_host
from atoll_operator.plan.run.observed import EvaluatorState
from atoll_operator.plan.run.syncer_state import CheckpointOrder, SyncerState, of_units
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus, NoReport, Order, SyncerStatus, dump

TIME_OUT = ClientTimeout(total=5, connect=3)
BODY_LIMIT = 8 * 2**20
"""Largest report in bytes. One full of waits takes 147 MiB to read, one run at a time. A unit takes at most 795 bytes
without waits, so the 4,096 that a run can have take 3.3 MB. Ledgers of deleted ones stay in it."""
LONG, LONG_AT_ONCE = 2**18, 4
"""From this many bytes on a report is long. So many long ones are received at a time; others wait, and may time out."""
MAX_SECONDS = 12.0
"""Longest time between two polls of a syncer that does not answer or whose report takes long to read. It is below
`EXIT_GRACE_SECONDS`, for which the end of a pod is no failure because its run may have ended."""
SHARE = 0.02
"""Share of a core that reading the reports of one run takes at most, as far as `MAX_SECONDS` allows. A run may have
thousands of units, and its image decides what its syncer reports."""
INTERVALS = 5
"""Time between two polls of the evaluator, in `poll_seconds`: it has a new result per checkpoint, not per step."""

S = TypeVar("S", SyncerState, EvaluatorState)


class PollFailed(Exception):
    """No valid report; `reason` is CamelCase, the message is for people. It may quote the report and is cut."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(clip(message, 1024))
        self.reason = reason


@dataclass(slots=True)
class Poll(Generic[S]):
    run: Key
    uid: str
    shards: int
    state: S
    wanted: CheckpointOrder | None = None
    """A checkpoint that the syncer is asked for."""
    units: frozenset[str] = frozenset()
    """Units of the run."""
    cost: float = 0.0
    """CPU seconds that reading the last report took."""
    task: asyncio.Task[None] | None = None
    """None once polling has stopped."""


class Poller(Generic[S]):
    """Keeps one poll for each run, with a task of its own. Subclasses define what is polled, where and how often. If a
    poll changes the state, `changed` is called with the run's key, the old state and the new one."""

    role: str
    kind: Any
    unknown: S
    host: ClassVar[Callable[..., str]]
    """Returns the name in the pod's certificate for a run's name and namespace."""

    def __init__(self, settings: Settings, metrics: Metrics, changed: Callable[[Key, S, S], None]) -> None:
        self._settings, self._metrics = settings, metrics
        self._changed: Callable[[Key, S, S], None] = changed
        self._polls: dict[Key, Poll[S]] = {}
        self._long = asyncio.Semaphore(LONG_AT_ONCE)

    def ensure(self, run: Key, uid: str, shards: int, context: ssl.SSLContext) -> None:
        """Start polling, unless the same pods are polled already."""
        poll = self._polls.get(run)
        if poll and (poll.uid, poll.shards) == (uid, shards) and poll.task and not poll.task.done():
            return
        self.forget(run)
        poll = self._polls[run] = Poll(run, uid, shards, self.unknown)
        poll.task = asyncio.create_task(self._follow(poll, context), name=f"{type(self).__name__} {run}")

    def state(self, run: Key, uid: str) -> S:
        poll = self._polls.get(run)
        return poll.state if poll is not None and poll.uid == uid else self.unknown

    def stop(self, run: Key) -> None:
        """Stop polling. The last state stays known: it holds the last figures of the run's units."""
        if (poll := self._polls.get(run)) and poll.task is not None:
            poll.task.cancel()
            poll.task = None

    def forget(self, run: Key) -> None:
        """Stop polling and drop what is known."""
        self.stop(run)
        self._polls.pop(run, None)

    async def close(self) -> None:
        tasks = [poll.task for poll in self._polls.values() if poll.task is not None]
        for run in list(self._polls):
            self.forget(run)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _address(self, run: Key) -> tuple[str, str]:
        """The URL of the report, and the host name in the pod's certificate."""
        url: str = getattr(self._settings, f"{self.role.lower()}_url")
        where = {"run": run.name, "namespace": run.namespace}
        return url.format(**where, shard=0), self.host(**where)

    def _seconds(self, poll: Poll[S]) -> float:
        raise NotImplementedError

    async def _follow(self, poll: Poll[S], context: ssl.SSLContext) -> None:
        connector = TCPConnector(ssl=context)
        # Compressed, some KB might become many MiB.
        async with ClientSession(connector=connector, timeout=TIME_OUT, auto_decompress=False) as session:
            while True:
                old = poll.state
                poll.state = await self._poll(poll, session)
                if poll.state != old:
                    self._changed(poll.run, old, poll.state)
                await asyncio.sleep(self._seconds(poll) * random.uniform(0.9, 1.1))

    async def _poll(self, poll: Poll[S], session: ClientSession) -> S:
        try:
            return await self._heard(poll, await self._fetch(poll, session), session)
        except PollFailed as error:
            old, new = poll.state, poll.state.missed(error.reason, str(error))
            self._metrics.poll_errors.labels(error.reason).inc()
            if old.reason != new.reason:
                to_come = old.status is None and new.reason == f"{self.role}Unavailable"
                level = logging.INFO if to_come else logging.WARNING
                fields = {"object": str(poll.run), "url": self._address(poll.run)[0], "reason": new.reason}
                log(level, str(error), **fields)
            return new

    async def _fetch(self, poll: Poll[S], session: ClientSession) -> Any:
        """The report of a pod of the run with the poll's uid. Raises PollFailed."""
        url, host = self._address(poll.run)

        def failed(reason: str, what: str) -> PollFailed:
            return PollFailed(f"{self.role}{reason}", f"the {self.role.lower()}{what}")

        try:
            async with AsyncExitStack() as held:
                asked = session.get(url, server_hostname=host, allow_redirects=False)
                response = await held.enter_async_context(asked)
                if response.status != 200:
                    raise failed("Unavailable", f" answers {response.status}")
                body = bytearray()
                async for part in response.content.iter_any():
                    if len(body) < LONG <= len(body) + len(part):
                        await held.enter_async_context(self._long)
                    body += part
                    if len(body) > BODY_LIMIT:
                        raise failed("StatusTooLong", f"'s status has more than {BODY_LIMIT} bytes")
            began = time.thread_time()
            try:
                report = self.kind.read(body)
            finally:
                poll.cost = time.thread_time() - began
        except ssl.SSLError as error:
            raise failed("CertificateInvalid", f"'s certificate is not this run's: {error}") from error
        except (ClientError, TimeoutError, OSError) as error:
            raise failed("Unavailable", f" does not answer: {type(error).__name__}: {error}") from error
        except NoReport as error:
            raise failed("StatusInvalid", f"'s status cannot be read: {error}") from error
        if report.run_uid != poll.uid:
            raise failed("OfAnotherRun", f" serves the run of uid {report.run_uid}, not {poll.uid}")
        return report

    async def _heard(self, poll: Poll[S], report: Any, session: ClientSession) -> S:
        """The state after a report. Raises PollFailed if it is not what was asked for."""
        return poll.state.heard(report, time.monotonic())


class SyncerPoller(Poller[SyncerState]):
    """Polls shard 0, which reports for all, and asks it for checkpoints."""

    role, kind, unknown = "Syncer", SyncerStatus, SyncerState()
    host = staticmethod(partial(shard_host, shard=0))

    def stop(self, run: Key) -> None:
        """Stop polling. A syncer that is no longer polled counts as not answering."""
        super().stop(run)
        if poll := self._polls.get(run):
            poll.state = replace(poll.state, answering_since=None)

    def order(self, run: Key, wanted: CheckpointOrder | None) -> None:
        """Ask for this checkpoint from the next poll on, until it exists. None: stop asking."""
        if (poll := self._polls.get(run)) and poll.wanted != wanted:
            poll.wanted, poll.state = wanted, replace(poll.state, order=None)

    def keep(self, run: Key, units: Iterable[str]) -> None:
        """Keep the reports of these units, which the run has. So its objects bound what a syncer makes us keep."""
        if poll := self._polls.get(run):
            poll.units = frozenset(units)

    def _seconds(self, poll: Poll[SyncerState]) -> float:
        """The interval is longer without an answer, and where a report takes long to read."""
        seconds, state = self._settings.poll_seconds, poll.state
        if state.misses:
            return back_off(state.misses, seconds, max(MAX_SECONDS, seconds))
        return max(seconds, min(poll.cost / SHARE, MAX_SECONDS))

    async def _heard(self, poll: Poll[SyncerState], report: Any, session: ClientSession) -> SyncerState:
        if (report.shard, report.shards) != (0, poll.shards):
            other = f"shard {report.shard} of {report.shards} answers, not 0 of {poll.shards}"
            raise PollFailed("SyncerShardMismatch", other)
        kept, deleted = of_units(report, poll.units)
        new = replace(await super()._heard(poll, kept, session), deleted=deleted)
        wanted = poll.wanted if new.serves else None
        if wanted is not None and not wanted.stands(report):
            wanted = await self._ask(poll.run, wanted, session)
        return replace(new, order=wanted)

    async def _ask(self, run: Key, wanted: CheckpointOrder, session: ClientSession) -> CheckpointOrder:
        """Ask at every poll, because shard 0 may be killed or give the checkpoint up. It begins no other one while a
        checkpoint of this step or a later one is under way."""
        url, host = self._address(run)
        order = dump(Order(cut=wanted.step))
        try:
            async with session.post(url, server_hostname=host, allow_redirects=False, data=order) as response:
                answer = f"it answers {response.status} to the order"
                return replace(wanted, refused=answer if 300 <= response.status < 500 else "")
        except (ClientError, TimeoutError, OSError) as error:
            problem = "the syncer cannot be asked for a checkpoint"
            log(logging.WARNING, problem, object=str(run), url=url, error=str(error))
            return wanted


class EvaluatorPoller(Poller[EvaluatorState]):
    role, kind, unknown = "Evaluator", EvaluatorStatus, EvaluatorState()
    host = staticmethod(evaluator_host)

    def _seconds(self, poll: Poll[EvaluatorState]) -> float:
        return INTERVALS * self._settings.poll_seconds
