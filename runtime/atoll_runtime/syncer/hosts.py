"""The connected hosts: the messages that wait for each, and which contributions are malformed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from atoll_runtime.protocol.communication import carries
from atoll_runtime.protocol.effects import Effect, Evict, Publish, Release, SendPull
from atoll_runtime.protocol.fragments import MOST_PADDING, Layout
from atoll_runtime.protocol.messages import Header
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import Announce, Fenced, Over, Pull
from atoll_runtime.transport.wire import Down

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Messages that may wait for one host. Beyond that it is disconnected, and starts again with a Hello."""


@dataclass(eq=False)
class Session:
    """One host's open session."""

    unit: str
    incarnation: int
    host: int
    outgoing: asyncio.Queue[Down | None] = field(default_factory=lambda: asyncio.Queue(BACKLOG))
    """None ends the session."""

    def send(self, message: Down | None) -> None:
        try:
            self.outgoing.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("host %d of %s does not read its session: disconnected", self.host, self.unit)
            while not self.outgoing.empty():
                self.outgoing.get_nowait()
            self.outgoing.put_nowait(None)


class Sessions:
    """The newest session of each (unit, host)."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, Session]] = {}

    def add(self, session: Session) -> None:
        """Adds a session, and ends an older session of the same host."""
        hosts = self._open.setdefault(session.unit, {})
        old, hosts[session.host] = hosts.get(session.host), session
        if old is not None:
            old.send(None)

    def remove(self, session: Session) -> bool:
        """Removes a session. Returns False when a newer session had replaced it."""
        hosts = self._open.get(session.unit, {})
        if hosts.get(session.host) is not session:
            return False
        self._forget(session)
        return True

    def send(self, unit: str, message: Down) -> None:
        for session in self._open.get(unit, {}).values():
            session.send(message)

    def send_all(self, message: Down | None) -> None:
        for hosts in self._open.values():
            for session in hosts.values():
                session.send(message)

    def carry_out(self, effect: Effect) -> None:
        """Sends the messages that an effect has for hosts; ignores effects that have none."""
        match effect:
            case SendPull(round_id, unit, least):
                self.send(unit, Pull(round_id, least))
            case Release(round_id, str() as unit):
                self.send(unit, Over(round_id))
            case Release(round_id, None, others):
                kept = set(others)
                for unit in [name for name in self._open if name not in kept]:
                    self.send(unit, Over(round_id))
            case Publish(p, version, needed):
                fetching = set(needed)
                for unit in self._open:
                    self.send(unit, Announce(p, version, unit in fetching))
            case Evict(unit, newest):
                self.fence(unit, newest)

    def fence(self, unit: str, newest: int) -> None:
        """Ends and forgets the sessions of incarnations before `newest`."""
        for session in list(self._open.get(unit, {}).values()):
            if session.incarnation < newest:
                session.send(Fenced(newest))
                session.send(None)
                self._forget(session)

    def _forget(self, session: Session) -> None:
        hosts = self._open[session.unit]
        del hosts[session.host]
        if not hosts:
            del self._open[session.unit]


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
