"""Polls a pod of each active run for its report, over HTTPS with the run's certificates. One task per run."""

from __future__ import annotations

import asyncio
import random
import ssl
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import aiohttp
from pydantic import ValidationError

from atoll_operator.kube.cache import Key
from atoll_operator.metrics.process import Metrics
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus, SyncerStatus

TIME_OUT = aiohttp.ClientTimeout(total=5, connect=3)
BODY_LIMIT = 8 * 2**20
"""Bytes of a report. A unit with the longest name takes 795 with all figures and its ledger (2026-11-22): 3.3 MB for
the 4,096 units that a run can have; deleted units leave their ledgers."""
CERTIFICATE_ERRORS = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError)

R = TypeVar("R", SyncerStatus, EvaluatorStatus)
S = TypeVar("S")
P = TypeVar("P", bound="Poll[Any]")


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
    task: asyncio.Task[None] | None = None
    """None once polling has stopped."""
    poked: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    """Polls in a row without an answer."""


class Poller(Generic[P]):
    """Keeps one poll for each run. Subclasses say how to make a poll and what one round of it does."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._polls: dict[Key, P] = {}

    def ensure(self, run: Key, uid: str, shards: int, context: ssl.SSLContext) -> None:
        """Start polling, unless the same pods are polled already."""
        poll = self._find(run, uid)
        if poll is not None and poll.shards == shards and poll.task is not None and not poll.task.done():
            return
        self.forget(run)
        poll = self._polls[run] = self._new(run, uid, shards)
        poll.task = asyncio.create_task(self._follow(poll, context), name=f"{type(self).__name__} {run}")

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

    def _find(self, run: Key, uid: str) -> P | None:
        poll = self._polls.get(run)
        return poll if poll is not None and poll.uid == uid else None

    def _new(self, run: Key, uid: str, shards: int) -> P:
        raise NotImplementedError

    async def _round(self, poll: P, session: aiohttp.ClientSession) -> float:
        """Poll once, keep the new state and report changes; returns the seconds until the next round."""
        raise NotImplementedError

    async def _follow(self, poll: P, context: ssl.SSLContext) -> None:
        """Run until cancelled."""
        connector = aiohttp.TCPConnector(ssl=context, limit=poll.shards)
        async with aiohttp.ClientSession(connector=connector, timeout=TIME_OUT) as session:
            while True:
                seconds = await self._round(poll, session)
                try:
                    await asyncio.wait_for(poll.poked.wait(), seconds * random.uniform(0.9, 1.1))
                except TimeoutError:
                    continue
                poll.poked.clear()


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
