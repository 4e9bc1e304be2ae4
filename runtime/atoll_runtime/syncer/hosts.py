"""The connected hosts: what waits to be sent to each, and how what they say looks to the state machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from atoll_runtime.protocol.communication import CODECS, carries
from atoll_runtime.protocol.effects import Effect, Evict, Exclude, Publish, Release, SendMarkers, SendPull
from atoll_runtime.protocol.events import Audited, Marked, Offered, Part, Reported
from atoll_runtime.protocol.fragments import MOST_PADDING, Layout
from atoll_runtime.protocol.identifiers import NO_CUT
from atoll_runtime.protocol.linkmeter import LinkUse
from atoll_runtime.protocol.linkshare import MOST_TURN
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import (
    Announce,
    Audit,
    Fenced,
    Header,
    Hello,
    Mark,
    Marker,
    Over,
    Pull,
    Report,
)
from atoll_runtime.transport.wire import Down

log = logging.getLogger(__name__)

SHORTEST_STEP, LONGEST_STEP = 1e-6, 86400.0
"""Seconds of an inner step. 0 where it is not known."""
LAST_STEP = 2**30 - 2**20
"""Of a shard's clock: further than any target (10⁹). Hosts of a unit agree on twice a cut's step in int32."""
MOST_TOKENS = 10**15
"""Of an incarnation: as far from both, also when a ledger has counted them for every fragment."""
BOUNDS = {
    **dict.fromkeys(("incarnation", "seeded_step", "step", "steps", "anchor", "inner_step"), LAST_STEP),
    **dict.fromkeys(("tokens", "trained", "cursor"), MOST_TOKENS),
}
"""What a host may count up to, by the field of its message."""
LAST_SECOND = 10**12
"""Unix time; also of what a unit's beginning counts besides."""
LAST_CUT = 2**31 - 1
"""Number of a cut."""
MESSAGE_LIMIT = 400
"""Characters of what a unit says of its seed: it stands in every record of the journal."""
REASON_LIMIT = 256
"""Characters of why a link is used so, and of advice."""
BACKLOG = 4096
"""Messages that wait for one host; with more it is disconnected, and starts afresh with a Hello."""


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
        """An older session of the same host ends."""
        hosts = self._open.setdefault(session.unit, {})
        old, hosts[session.host] = hosts.get(session.host), session
        if old is not None:
            old.send(None)

    def remove(self, session: Session) -> bool:
        """False when a newer session took its place."""
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
        """Sends what the machine wants hosts to be told; of other effects nothing."""
        match effect:
            case SendPull(round_id, unit, least):
                self.send(unit, Pull(round_id, least))
            case Release(round_id, str() as unit):
                self.send(unit, Over(round_id))
            case Release(round_id, None, others) | Exclude(round_id, others):
                kept = set(others)
                for unit in [name for name in self._open if name not in kept]:
                    self.send(unit, Over(round_id))
            case Publish(p, version, needed):
                fetching = set(needed)
                for unit in self._open:
                    self.send(unit, Announce(p, version, unit in fetching))
            case SendMarkers(cut):
                self.send_all(Marker(cut))
            case Evict(unit, newest):
                self.fence(unit, newest)

    def end_all(self) -> None:
        self.send_all(None)

    def fence(self, unit: str, newest: int) -> None:
        """Ends the sessions of incarnations before `newest`; they are not this unit's any more."""
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


def beyond(message: Hello | Report | Mark | Part | Audit) -> str:
    """The field whose number no host of a run can have come to, and so must not stand in a journal; else empty."""
    for name, most in BOUNDS.items():
        found = getattr(message, name, 0)
        if not 0 <= found <= most:
            return f"{name}: {found} must be within 0 … {most}"
    cut = message.cut if isinstance(message, Mark | Part) else NO_CUT
    if not (NO_CUT.step <= cut.step <= LAST_STEP and NO_CUT.number <= cut.number <= LAST_CUT):
        return f"cut: {cut.step}, number {cut.number} must be within 0 … {LAST_STEP}, 0 … {LAST_CUT}"
    return ""


def malformed(header: Header, layout: Layout, codec: str) -> str:
    """What a contribution cannot be in this run, by its layout and codec; empty when it can."""
    part, p = header.part, header.part.round.fragment
    if not 0 <= p < len(layout.fragments):
        return f"fragment: {p} of {len(layout.fragments)} does not exist"
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
    limits = {"seconds": TRANSFER_SECONDS, "round_trip": TRANSFER_SECONDS, "turn": MOST_TURN}
    for name, limit in limits.items():
        if not 0 <= getattr(header, name) <= limit:
            return f"{name}: {getattr(header, name)} must be within 0 … {limit:g}"
    return beyond(part)


def offered(session: Session, header: Header, layout: Layout, codec: str) -> Offered:
    """A header on the session.

    Raises:
        ValueError: it is not of this host, or no contribution can be so.
    """
    part = header.part
    if (part.unit, part.incarnation, part.host) != (session.unit, session.incarnation, session.host):
        raise ValueError(f"header: of host {part.host} of {part.unit}, incarnation {part.incarnation}")
    if wrong := malformed(header, layout, codec):
        raise ValueError(wrong)
    return Offered(part, header.seconds, header.round_trip, header.turn)


def reported(session: Session, report: Report, before: LinkUse | None = None) -> Reported:
    """The machine's view of a report.

    Args:
        before: what the unit used its link for when it reported last.

    Raises:
        ValueError: its step took a time that no step takes, it counts further than a host can, no unit has begun so, or
            uses its link so.
    """
    if wrong := beyond(report):
        raise ValueError(wrong)
    seconds = report.step_seconds
    if seconds != 0 and not SHORTEST_STEP <= seconds <= LONGEST_STEP:  # nor is NaN
        raise ValueError(f"step_seconds: {seconds} must be 0, or within {SHORTEST_STEP:g} … {LONGEST_STEP:g}")
    beginning = msgspec.structs.asdict(report.beginning) if report.beginning is not None else {}
    link, use = vars(report.link), report.link.use
    numbers = {name: value for name, value in {**vars(use), **link}.items() if type(value) in (int, float)}
    wrong = outside("beginning", beginning, {}) or outside("link", numbers, {"busy_share": 1})
    if wrong:
        raise ValueError(wrong)
    if use.codec not in ("", *CODECS) or max(len(use.reason), len(use.advice)) > REASON_LIMIT:
        raise ValueError(f"link.codec: {use.codec!r}, or its reason has more than {REASON_LIMIT} characters")
    return Reported(
        session.unit,
        session.incarnation,
        session.host,
        report.step,
        report.steps,
        report.tokens,
        report.loss,
        report.step_seconds,
        report.cursor,
        use if use.reason and (before is None or use.told != before.told) else None,
    )


def audited(session: Session, audit: Audit) -> Audited:
    """The machine's view of an audit's result.

    Raises:
        ValueError: it counts further than a host can, or names no kind.
    """
    if wrong := beyond(audit):
        raise ValueError(wrong)
    if not 0 < len(audit.kind) <= MESSAGE_LIMIT:
        raise ValueError(f"kind: {len(audit.kind)} characters must be within 1 … {MESSAGE_LIMIT}")
    return Audited(session.unit, session.incarnation, audit.step, audit.kind, audit.loss)


def outside(kind: str, found: Mapping[str, float], limits: Mapping[str, int]) -> str:
    """The field whose number no unit has, and which JSON may not have either; else empty. Without a limit of its own it
    may come up to LAST_SECOND."""
    for name, value in found.items():
        most = limits.get(name, LAST_SECOND)
        if not 0 <= value <= most:
            return f"{kind}.{name}: {value} must be within 0 … {most}"
    return ""


def marked(session: Session, mark: Mark) -> Marked:
    """The machine's view of a marker.

    Raises:
        ValueError: it counts further than a host can.
    """
    if wrong := beyond(mark):
        raise ValueError(wrong)
    return Marked(session.unit, session.incarnation, session.host, mark.cut, mark.trained)
