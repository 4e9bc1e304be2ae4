"""One host's client of the syncer: a session with each shard, all on one event loop. The training loop waits for none.

The event loop runs in a thread of its own, or is the caller's, as in simulated time. The training loop's thread uses
the client. Every method returns at once, except those with a time-out. The client numbers fragment p of shard s as
s·P + p.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.interfaces import Network
from atoll_runtime.learner.communication import LinkPolicy
from atoll_runtime.learner.session import ShardSession
from atoll_runtime.learner.signals import Signals
from atoll_runtime.learner.transfers import Arrival
from atoll_runtime.protocol.communication import Communication
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.protocol.messages import SEED_MESSAGE, Audit, Beginning, Hello, Part
from atoll_runtime.protocol.progress import Contribution
from atoll_runtime.protocol.rules import COORDINATOR
from atoll_runtime.protocol.shardview import PullRequest
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PROTOCOL, Fenced, Refused, Stop, Welcome

T = TypeVar("T")


class SyncerClient:
    """Exchanges messages, contributions and versions between this host and all shards.

    Args:
        bounds: this host's [start, stop) in each padded fragment.
        padded: elements of each fragment, padded to the unit's devices.
        networks: one for each shard of the layout.
        clock: gives seconds; links are measured with it.
    """

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        layout: Layout,
        bounds: Sequence[tuple[int, int]],
        padded: Sequence[int],
        networks: Sequence[Network],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(networks) != layout.shards:
            raise ValueError(f"networks: {len(networks)} for {layout.shards} shards")
        self._run, self._unit, self._layout = run, unit, layout
        self._bounds, self._padded, self._networks = tuple(bounds), tuple(padded), tuple(networks)
        self._policy = LinkPolicy(
            run, sum(stop - start for start, stop in self._bounds), self._networks, clock
        )
        self._signals = Signals()
        self._sessions: list[ShardSession] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(
        self, versions: Sequence[int], seeded_step: int, seed_message: str, lineages: Sequence[str] = ()
    ) -> None:
        """Calls `connect` on an event loop in a thread of its own."""
        loop, begun = asyncio.new_event_loop(), threading.Event()
        loop.call_soon(self.connect, versions, seeded_step, seed_message, lineages)
        loop.call_soon(begun.set)

        def serve() -> None:
            loop.run_forever()
            loop.close()

        self._loop = loop
        threading.Thread(target=serve, name="syncer-client", daemon=True).start()
        begun.wait()

    def connect(
        self, versions: Sequence[int], seeded_step: int, seed_message: str, lineages: Sequence[str] = ()
    ) -> None:
        """Starts to connect to every shard, in the background on the caller's event loop.

        Args:
            versions: those that this host holds, by fragment.
            lineages: the lineages of the versions, by shard; empty if unknown.
        """
        sizes = [fragment.size for fragment in self._layout.fragments]
        # A fragment without elements has no version to hold.
        held = tuple(version if size else 0 for version, size in zip(versions, sizes, strict=True))
        self._signals.start()
        for s, network in enumerate(self._networks):
            hello = Hello(
                protocol=PROTOCOL,
                run_uid=self._run.uid,
                unit=self._unit.unit,
                incarnation=self._unit.incarnation,
                host=self._unit.host,
                hosts=self._unit.hosts,
                fingerprint=self._layout.shard(s).fingerprint,
                codec=self._run.outer.codec,
                seeded_step=seeded_step,
                seed_message=seed_message[:SEED_MESSAGE],
                address=self._unit.address,
            )
            lineage, bounds = lineages[s] if lineages else "", self._bounds[self._own(s)]
            own = held[self._own(s)]
            session = ShardSession(s, hello, own, lineage, bounds, network, self._policy, self._signals)
            self._sessions.append(session)
            self._tasks += [asyncio.create_task(self._signals.work(job)) for job in session.jobs]

    def welcome(self, timeout: float) -> Welcome | None:
        """The shards' first answers, merged into one; None if no shard has answered. For a shard that has not answered,
        `versions` has those that this host holds. Waits at most `timeout` seconds, so use it only before training."""
        with self._signals.lock:
            self._signals.lock.wait_for(lambda: self.answered, timeout)
        known = [session.welcome for session in self._sessions if session.welcome is not None]
        if not known:
            return None
        versions: list[int] = []
        for session in self._sessions:
            versions += session.link.held if session.welcome is None else session.welcome.versions
        furthest = {
            name: max(getattr(answer, name) for answer in known)
            for name in ("global_step", "inner_step", "cursor")
        }
        return msgspec.structs.replace(known[0], **furthest, versions=tuple(versions), merged=self.merged())

    def begin(self, beginning: Beginning) -> None:
        """Call when the first step has ended. The following reports carry `beginning`."""
        self._sessions[COORDINATOR].beginning = beginning

    def report(self, step: int, steps: int, tokens: int, loss: float, step_seconds: float) -> None:
        """Call at each inner step; see `Report`. Host 0 tells shard 0."""
        self._policy.pace.add(step_seconds)
        if self._unit.host == 0:
            with self._signals.changing():
                self._sessions[COORDINATOR].report(step, steps, tokens, loss, step_seconds)

    def say(self, message: Audit) -> None:
        """Sends a message to shard 0, if this is host 0, which speaks for its unit."""
        if self._unit.host == 0:
            with self._signals.changing():
                self._sessions[COORDINATOR].say(message)

    def arrived(self) -> dict[int, Arrival]:
        """The newest complete version of each fragment, unless the training loop has adopted it."""
        with self._signals.lock:
            return self._numbered(session.transfers.arrivals for session in self._sessions)

    def adopt(self, number: int, arrival: Arrival) -> None:
        """Call when the training loop has taken an arrival, which is the anchor now."""
        s, p = divmod(number, self._layout.width)
        with self._signals.changing():
            self._sessions[s].transfers.adopt(p, arrival)

    def contest(self, versions: Mapping[int, int]) -> None:
        """Fetches these versions, or newer ones, and nothing else of their shards, because another host of the unit has
        them or fetches them."""
        own: list[dict[int, int]] = [{} for _ in self._sessions]
        for number, version in versions.items():
            s, p = divmod(number, self._layout.width)
            own[s][p] = version
        with self._signals.changing():
            for session, each in zip(self._sessions, own, strict=True):
                session.link.contest(each)

    def fetching(self) -> dict[int, int]:
        """The versions that are on their way, by fragment. Newer ones may come."""
        with self._signals.lock:
            return self._numbered(session.transfers.fetching for session in self._sessions)

    def pulls(self) -> dict[int, PullRequest]:
        """Open rounds that want a contribution, by fragment, if their least anchor is here."""
        with self._signals.lock:
            return self._numbered(session.transfers.pulls() for session in self._sessions)

    @property
    def communication(self) -> Communication:
        """How the host uses its link now: the codec of contributions, and more."""
        return self._policy.now

    def contribute(
        self,
        number: int,
        ask: PullRequest,
        codec: str,
        body: memoryview,
        offer: Contribution,
        step: int,
        cursor: int,
    ) -> None:
        """Queues this host's encoded part of anchor − θ after the inner step `step`. A late part is dropped. Raises
        `ValueError` for a part of the wrong size."""
        start, stop = self._bounds[number]
        if len(body) != codecs.size(stop - start, codec):
            raise ValueError(f"part: {len(body)} bytes of {codec} must be those of {stop - start} elements")
        part = Part(
            unit=self._unit.unit,
            incarnation=self._unit.incarnation,
            host=self._unit.host,
            hosts=self._unit.hosts,
            round=ask.round,
            cursor=cursor,
            inner_step=step,
            start=start,
            stop=stop,
            padded=self._padded[number],
            **vars(offer),
        )
        with self._signals.changing():
            self._sessions[number // self._layout.width].transfers.contribute(part, codec, body)

    def cut(self) -> CutId:
        """The newest cut that any shard has announced. Call it after `arrived`, so that it covers the arrivals."""
        return max(session.link.cut for session in self._sessions)

    def merged(self) -> int:
        """Merged tokens by the count of shard 0, as far as this host knows."""
        return self._sessions[COORDINATOR].link.merged

    def last_word(self) -> Stop | Fenced | Refused | None:
        """The message by which a shard has ended the exchange: the final cut is safe and the unit may leave, there is a
        newer incarnation, or why the host is refused."""
        return self._signals.last_word

    def check(self) -> None:
        """Raises the exception that ended the client, if there was one."""
        if self._signals.failure is not None:
            raise self._signals.failure

    def close(self, timeout: float) -> None:
        """Ends every session; waits at most `timeout` seconds."""
        loop, self._loop = self._loop, None
        if loop is not None:
            ended = asyncio.run_coroutine_threadsafe(self.disconnect(), loop)
            with contextlib.suppress(TimeoutError):
                ended.result(timeout)
            loop.call_soon_threadsafe(loop.stop)

    async def disconnect(self) -> None:
        """Ends every session, on the caller's event loop."""
        self._signals.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(network.close() for network in self._networks))

    @property
    def answered(self) -> bool:
        """Whether every shard has answered, or no more answers will come."""
        return self._signals.ended or all(session.welcome is not None for session in self._sessions)

    def _own(self, s: int) -> slice:
        """A shard's fragments."""
        return slice(s * self._layout.width, (s + 1) * self._layout.width)

    def _numbered(self, found: Iterable[dict[int, T]]) -> dict[int, T]:
        """Merges what the sessions have, with the client's numbers of fragments."""
        return {s * self._layout.width + p: each for s, own in enumerate(found) for p, each in own.items()}
