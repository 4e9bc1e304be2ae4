"""What a learner's host can ask of a shard: to open a session, push parts, fetch versions, and list other units."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from atoll_runtime.protocol.communication import carries, serves
from atoll_runtime.protocol.events import Declined, Left, LinkTold, Received, Said
from atoll_runtime.protocol.fragments import MOST_PADDING, Layout
from atoll_runtime.protocol.linkmeter import LinkReading
from atoll_runtime.protocol.messages import Audit, Header, Hello, Report
from atoll_runtime.protocol.units import Unit
from atoll_runtime.syncer import hosts
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.following import followed
from atoll_runtime.syncer.hosts import Session
from atoll_runtime.syncer.summary import Other
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    FetchHead,
    FetchRequest,
    PeerAddress,
    PushReply,
    Refused,
    ShardHello,
    Stop,
    Welcome,
)
from atoll_runtime.transport.transport import Peer, Receive
from atoll_runtime.transport.wire import Down, Up, WireError

log = logging.getLogger(__name__)

HELLO_SECONDS = 15.0


class Service:
    """The endpoint of a shard. See `transport.Endpoint` for what it serves."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.run, self.machine, self.state = driver.run, driver.machine, driver.state
        self.bytes_in = self.bytes_out = 0
        self._reports: dict[str, tuple[int, Report]] = {}
        """Of each unit: an incarnation and its last report. Not on disk, because the next report repeats it."""
        self.others = {shard: Other(time.time()) for shard in range(1, self.machine.rules.shards)}
        """What shard 0 knows about the other shards, for the operator."""

    def report_of(self, unit: Unit) -> Report | None:
        """The last report of its present incarnation; None before the first."""
        incarnation, report = self._reports.get(unit.name, (0, None))
        return report if incarnation == unit.incarnation else None

    async def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        async with asyncio.timeout(HELLO_SECONDS):
            first = await anext(incoming, None)
        if isinstance(first, ShardHello):
            wrong = hosts.shard_refusal(self.run, self.machine.rules, peer, first)
            if wrong is not None:
                log.warning("refused %s: %s", peer.address, wrong.reason)
                yield wrong
                return
            orders: Any = None
            with followed(self.driver, self.others[first.shard], first, incoming):
                while True:
                    orders = await self.driver.news.after(orders)
                    yield orders
        if not isinstance(first, Hello):
            yield Refused("a session starts with Hello")
            return
        refusal = hosts.refusal(self.run, self.state.layout, peer, first, self.machine.units)
        if refusal is not None:
            who = peer.address, first.incarnation, first.unit
            log.warning("refused %s, incarnation %d of %s: %s", *who, refusal)
            yield refusal
            return
        session = Session(first.unit, first.incarnation, first.host)
        self.driver.sessions.add(session)
        reader: asyncio.Task[None] | None = None
        try:
            self.driver.feed(first)
            # On the disk after the wait. What is decided meanwhile is told when it is on the disk too.
            final, cut = self.machine.final, self.machine.cuts.newest
            await self.driver.durable()
            if final:
                yield Stop(self.machine.step)
                return
            unit = self.machine.units[first.unit]
            yield Welcome(
                self.driver.journal.lineage,
                self.machine.step,
                self.state.versions,
                self.machine.rounds.leasts(unit, self.machine.step),
                unit.merged_cursor,
                unit.merged_step,
                cut,
                self.machine.tokens,
                self.state.series,
                self.machine.rounds.taking(first.unit, first.host),
            )
            reader = asyncio.create_task(self._read(session, incoming))
            while (message := await session.outgoing.get()) is not None:
                yield message
        finally:
            if reader is not None:
                reader.cancel()
            if self.driver.sessions.remove(session):
                self.driver.feed(Left(session.unit, session.incarnation, session.host))

    async def push(self, peer: Peer, header: Header, receive: Receive) -> PushReply:
        refusal = self._admit(peer, header)
        if refusal:
            return PushReply(False, refusal)
        try:
            refusal = await self._receive(header, receive)
        finally:
            self.driver.parts.end(header, wanted=not self.machine.admit(header.part))
        return PushReply(not refusal, refusal)

    def _admit(self, peer: Peer, header: Header) -> str:
        """Reserves the bytes of a part before its body is read. Returns why it is not wanted; empty when it is."""
        part = header.part
        foreign = hosts.stranger(self.run, peer, part.unit)
        if foreign:
            return foreign
        wrong = malformed(header, self.state.layout, self.state.codec)
        if wrong:
            return wrong
        refusal = self.machine.admit(part) or self.driver.parts.reserve(header)
        self.driver.feed(Declined(part, refusal) if refusal else header)
        return refusal

    async def _receive(self, header: Header, receive: Receive) -> str:
        """Reads the body and gives it to the machine. Returns why it was refused; empty when it was accepted."""
        part, parts = header.part, self.driver.parts
        pushed = await parts.receive(header, receive)
        self.bytes_in += len(pushed)
        fragment = self.state.layout.fragments[part.round.fragment]
        held = await asyncio.to_thread(self.driver.arrays.read, fragment, header, pushed)
        if not parts.reserved(header):
            return "the push was begun anew"
        refusal = self.machine.admit(part)
        if refusal:
            self.driver.feed(Declined(part, refusal))
        else:
            parts.hold(header, held)
            self.driver.feed(Received(part, held.scan.square))
        return refusal or ("" if held.scan.finite else "the outer gradient is not finite")

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview] | str:
        foreign = hosts.stranger(self.run, peer, request.unit)
        if foreign:
            return foreign
        if not 0 <= request.fragment < len(self.state.fragments) or not serves(
            request.codec, self.state.codec
        ):
            return f"fragment {request.fragment} in {request.codec} does not exist"
        size = self.state.fragments[request.fragment].theta.size
        if not 0 <= request.start < request.stop <= size + MOST_PADDING:
            wanted = f"range: [{request.start}, {request.stop}) of {size} elements"
            return f"{wanted}, filled up by {MOST_PADDING} at most"
        if request.turn > 1.0:
            self.driver.feed(LinkTold(request.unit, request.incarnation, request.host, request.turn))
        head, body = self.state.fetch(request)
        self.bytes_out += head.size
        cut, merged = self.machine.cuts.newest, self.machine.tokens
        return msgspec.structs.replace(head, cut=cut, merged=merged), body

    def directory(self, peer: Peer, request: DirectoryRequest) -> DirectoryReply | str:
        foreign = hosts.stranger(self.run, peer, request.unit)
        if foreign:
            return foreign
        peers = [
            PeerAddress(unit.name, unit.incarnation, tuple(unit.addresses[h] for h in sorted(unit.addresses)))
            for unit in self.machine.rounds.live
            if unit.name != request.unit
            and unit.contributions
            and all(unit.addresses.values())
            and not unit.suspect
        ]
        return DirectoryReply(self.driver.journal.lineage, self.state.versions, tuple(peers))

    async def _read(self, session: Session, incoming: AsyncIterator[Up]) -> None:
        try:
            async for message in incoming:
                self._take(session, message)
        except WireError as error:
            log.warning("ended the session of host %d of %s: %s", session.host, session.unit, error)
        finally:
            session.send(None)

    def _take(self, session: Session, message: Up) -> None:
        if isinstance(message, Header):
            part, mine = message.part, (session.unit, session.incarnation, session.host)
            wrong = malformed(message, self.state.layout, self.state.codec)
            if (part.unit, part.incarnation, part.host) != mine:
                wrong = f"it is of host {part.host} of {part.unit}, incarnation {part.incarnation}"
            if wrong:
                log.warning("refused a header of host %d of %s: %s", session.host, session.unit, wrong)
            else:
                self.driver.feed(message)
        elif self.machine.coordinates and session.host == 0 and isinstance(message, Report | Audit):
            # Host 0 speaks for its unit, to shard 0 alone: others would take a single report for the run's pace.
            news = self._news(session, message) if isinstance(message, Report) else message
            self.driver.feed(Said(session.unit, session.incarnation, news))

    def _news(self, session: Session, report: Report) -> Report:
        """Returns the report without what the machine does not use: the link stays only if its use changed."""
        incarnation, before = self._reports.get(session.unit, (0, None))
        self._reports[session.unit] = session.incarnation, report
        known = before if incarnation == session.incarnation else None
        same = known is not None and known.link.use.told == report.link.use.told
        link = LinkReading() if same else report.link
        return msgspec.structs.replace(report, beginning=None, link=link)


def malformed(header: Header, layout: Layout, codec: str) -> str:
    """Returns why the run's layout or codec does not allow this contribution; empty when they do."""
    part, p = header.part, header.part.round.fragment
    if not 0 <= p < len(layout.fragments):
        return f"fragment: {p} of {len(layout.fragments)} does not exist"
    if part.host >= part.hosts:
        return f"host: {part.host} of {part.hosts} does not exist"
    if part.trained < part.tokens:
        return f"trained: {part.trained} is less than the {part.tokens} tokens of the contribution"
    most = layout.fragments[p].size + MOST_PADDING
    if not 0 <= part.start < part.stop <= part.padded <= most:
        return f"range: [{part.start}, {part.stop}) of {part.padded} elements, where there are {most} at most"
    if (part.stop - part.start) * part.hosts > part.padded:
        return (
            f"range: [{part.start}, {part.stop}) of {part.padded} elements is not one of {part.hosts} hosts'"
        )
    if not carries(header.codec, codec):
        return f"codec: {header.codec} in a run of {codec}"
    if header.size != codecs.size(part.stop - part.start, header.codec):
        return f"{header.size} bytes of {header.codec} for [{part.start}, {part.stop})"
    return ""
