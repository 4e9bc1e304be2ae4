"""Polls a pod of each active run for its report, over HTTPS with the run's certificates. One task per run."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import aiohttp
from pydantic import ValidationError

from atoll_operator.kube.cache import Key
from atoll_operator.kube.logs import tell
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.run import evaluation, syncer_state
from atoll_operator.plan.run.observed import EvaluatorState
from atoll_operator.plan.run.syncer_state import CheckpointOrder, SyncerState
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus, SyncerStatus

TIME_OUT = aiohttp.ClientTimeout(total=5, connect=3)
BODY_LIMIT = 8 * 2**20
"""Bytes of a report. A unit with the longest name takes 795 with all figures and its ledger (2026-11-22): 3.3 MB for
the 4,096 units that a run can have; deleted units leave their ledgers."""
UNAVAILABLE = (syncer_state.UNAVAILABLE, evaluation.UNAVAILABLE)
CERTIFICATE_ERRORS = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError)

S = TypeVar("S", SyncerState, EvaluatorState)
R = TypeVar("R", SyncerStatus, EvaluatorStatus)


class PollFailed(Exception):
    """No valid report; `reason` is CamelCase, the message is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Poll(Generic[S]):
    """Polling of one run."""

    run: Key
    uid: str
    shards: int
    state: S
    """What the polls have shown."""
    wanted: CheckpointOrder | None = None
    """A checkpoint that the syncer is asked for."""
    task: asyncio.Task[None] | None = None
    """None once polling has stopped."""
    poked: asyncio.Event = field(default_factory=asyncio.Event)


class Poller(Generic[S, R]):
    """Keeps one poll for each run. Subclasses say what an answer means, and when to ask again.

    Args:
        url: of a report, with `{run}` and `{namespace}`, and perhaps `{shard}`, in it.
        host: the name in the certificate of a pod, by run and namespace.
    """

    kind: type[R]
    unknown: S
    """The state before the first poll."""

    def __init__(
        self, settings: Settings, metrics: Metrics, url: str, host: Callable[[str, str], str]
    ) -> None:
        self._settings, self._metrics, self._url, self._host = settings, metrics, url, host
        self._polls: dict[Key, Poll[S]] = {}

    def ensure(self, run: Key, uid: str, shards: int, context: ssl.SSLContext) -> None:
        """Start polling, unless the same pods are polled already."""
        poll = self._find(run, uid)
        if poll is not None and poll.shards == shards and poll.task is not None and not poll.task.done():
            return
        self.forget(run)
        poll = self._polls[run] = Poll(run, uid, shards, self.unknown)
        poll.task = asyncio.create_task(self._follow(poll, context), name=f"{type(self).__name__} {run}")

    def state(self, run: Key, uid: str) -> S:
        """What is known."""
        poll = self._find(run, uid)
        return poll.state if poll is not None else self.unknown

    def stop(self, run: Key) -> None:
        """Stop polling. The last state stays known: it holds the last figures of the run's units."""
        poll = self._polls.get(run)
        if poll is not None and poll.task is not None:
            poll.task.cancel()
            poll.task = None

    def forget(self, run: Key) -> None:
        """Stop polling and drop what is known."""
        self.stop(run)
        self._polls.pop(run, None)

    def poke(self, run: Key) -> None:
        """Poll now instead of at the next interval."""
        if poll := self._polls.get(run):
            poll.poked.set()

    async def close(self) -> None:
        """Stop all polls and wait until their tasks have ended."""
        tasks = [poll.task for poll in self._polls.values() if poll.task is not None]
        for run in list(self._polls):
            self.forget(run)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, run: Key, uid: str) -> Poll[S] | None:
        poll = self._polls.get(run)
        return poll if poll is not None and poll.uid == uid else None

    def _address(self, run: Key) -> tuple[str, str]:
        """The URL of the report, and the host name in the pod's certificate."""
        url = self._url.format(run=run.name, namespace=run.namespace, shard=0)
        return url, self._host(run.name, run.namespace)

    async def _heard(self, poll: Poll[S], report: R, session: aiohttp.ClientSession) -> S:
        """The state after a report. Raises PollFailed if it is not what was asked for."""
        raise NotImplementedError

    def _changed(self, run: Key, old: S, new: S) -> None:
        """Report what is new."""
        raise NotImplementedError

    def _seconds(self, poll: Poll[S]) -> float:
        """Until the next poll."""
        raise NotImplementedError

    async def _follow(self, poll: Poll[S], context: ssl.SSLContext) -> None:
        """Run until cancelled."""
        connector = aiohttp.TCPConnector(ssl=context, limit=poll.shards)
        async with aiohttp.ClientSession(connector=connector, timeout=TIME_OUT) as session:
            while True:
                old = poll.state
                poll.state = await self._poll(poll, session)
                self._changed(poll.run, old, poll.state)
                try:
                    await asyncio.wait_for(poll.poked.wait(), self._seconds(poll) * random.uniform(0.9, 1.1))
                except TimeoutError:
                    continue
                poll.poked.clear()

    async def _poll(self, poll: Poll[S], session: aiohttp.ClientSession) -> S:
        try:
            return await self._heard(poll, await self._fetch(poll, session), session)
        except PollFailed as error:
            old, new = poll.state, poll.state.missed(error.reason, str(error))
            self._metrics.poll_errors.labels(error.reason).inc()
            if old.reason != new.reason:
                starting = old.status is None and new.reason in UNAVAILABLE  # its pod may not run yet
                level = logging.INFO if starting else logging.WARNING
                fields = {"object": str(poll.run), "url": self._address(poll.run)[0], "reason": new.reason}
                tell(level, str(error), **fields)
            return new

    async def _fetch(self, poll: Poll[S], session: aiohttp.ClientSession) -> R:
        return await fetch(session, *self._address(poll.run), poll.uid, self.kind)


async def fetch(session: aiohttp.ClientSession, url: str, host: str, uid: str, kind: type[R]) -> R:
    """Fetch the report at `url`, from a pod of the run of this uid whose certificate names `host`.

    Raises:
        PollFailed: its reason begins with `Syncer` or `Evaluator`.
    """
    role = "Syncer" if kind is SyncerStatus else "Evaluator"

    def failed(reason: str, what: str) -> PollFailed:
        return PollFailed(f"{role}{reason}", f"the {role.lower()}{what}")

    try:
        async with session.get(url, server_hostname=host) as response:
            if response.status != 200:
                raise failed("Unavailable", f" answers {response.status}")
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > BODY_LIMIT:
                    text = f"'s status cannot be read: it has more than {BODY_LIMIT} bytes"
                    raise failed("StatusTooLong", text)
        report = kind.model_validate_json(bytes(body))
    except CERTIFICATE_ERRORS as error:
        raise failed("CertificateInvalid", f"'s certificate is not this run's: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise failed("Unavailable", f" does not answer: {type(error).__name__}: {error}") from error
    except ValidationError as error:
        raise failed("StatusInvalid", f"'s status cannot be read: {error.errors()[:3]}") from error
    if report.run_uid != uid:
        raise failed("OfAnotherRun", f" serves the run of uid {report.run_uid}, not {uid}")
    return report
