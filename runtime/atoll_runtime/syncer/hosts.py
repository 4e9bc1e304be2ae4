"""Who may take part in a run, and how a host's messages look to the state machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from atoll_runtime.contract import RunContract, identity
from atoll_runtime.protocol.events import Audited, Joined, Marked, Offered, Part, Reported
from atoll_runtime.protocol.fragments import MOST_PADDING, Layout
from atoll_runtime.protocol.identifiers import NO_CUT, NOTHING
from atoll_runtime.protocol.rules import COORDINATOR, TRANSFER_SECONDS, Rules
from atoll_runtime.syncer.sessions import Session
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PROTOCOL, Audit, Header, Hello, Mark, Refused, Report
from atoll_runtime.transport.shardmessages import ShardHello
from atoll_runtime.transport.transport import Peer

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
MOST_UNITS = 8192
"""Twice what 16 pools of 256 units have at a time: a unit that is gone for good still stands in the token ledger."""
MOST_HOSTS = 4096
"""Of a unit."""
MESSAGE_LIMIT = 400
"""Characters of what a unit says of its seed: it stands in every record of the journal."""


def beyond(message: Hello | Report | Mark | Part | Audit) -> str:
    """The field whose number no host of a run can have come to, and so must not stand in a journal; else empty."""
    for field, most in BOUNDS.items():
        found = getattr(message, field, 0)
        if not 0 <= found <= most:
            return f"{field}: {found} must be within 0 … {most}"
    cut = message.cut if isinstance(message, Mark | Part) else NO_CUT
    if not (NO_CUT.step <= cut.step <= LAST_STEP and NO_CUT.number <= cut.number <= LAST_CUT):
        return f"cut: {cut.step}, number {cut.number} must be within 0 … {LAST_STEP}, 0 … {LAST_CUT}"
    return ""


def stranger(run: RunContract, peer: Peer, unit: str) -> str:
    """Why the peer is not a host of `unit`, by its certificate; empty when it is."""
    name = identity(run.namespace, run.name, "unit", unit)
    return "" if peer.may_be(name) else f"the certificate names {', '.join(peer.identities)}, not {name}"


def refusal(
    run: RunContract, layout: Layout, peer: Peer, hello: Hello, units: Collection[str]
) -> Refused | None:
    """Why this host cannot take part; None when it can. `units`: those that the shard knows."""
    foreign = stranger(run, peer, hello.unit)
    if foreign:
        return Refused(foreign)
    if hello.protocol != PROTOCOL:
        versions = f"the unit's image speaks protocol {hello.protocol}, the syncer's {PROTOCOL}"
        return Refused(f"{versions}: give both the same image", version=True)
    wanted = {
        "run uid": (hello.run_uid, run.uid),
        "layout": (hello.fingerprint, layout.fingerprint),
        "codec": (hello.codec, run.outer.codec),
        "fragments": (len(hello.versions), len(layout.fragments)),
    }
    for field, (found, want) in wanted.items():
        if found != want:
            return Refused(f"{field}: {found!r} where this run has {want!r}")
    if hello.incarnation < 1 or not 0 <= hello.host < hello.hosts:
        return Refused(f"host {hello.host} of {hello.hosts}, incarnation {hello.incarnation}: no such host")
    if found := beyond(hello):
        return Refused(found)
    if not all(NOTHING <= version <= LAST_STEP for version in hello.versions):
        return Refused(f"versions: {hello.versions} must be within {NOTHING} … {LAST_STEP}")
    if hello.hosts > MOST_HOSTS:
        return Refused(f"{hello.hosts} hosts: a unit has {MOST_HOSTS} at most")
    if hello.unit not in units and len(units) >= MOST_UNITS:
        return Refused(f"{hello.unit}: this run has had {len(units)} units, and has place for no more")
    return None


def shard_refusal(run: RunContract, rules: Rules, peer: Peer, hello: ShardHello) -> Refused | None:
    """Why this is no other shard of the run for shard 0; None when it is."""
    role = identity(run.namespace, run.name, "syncer", "")
    if peer.identities and not any(name.startswith(role) for name in peer.identities):
        return Refused(f"the certificate names {', '.join(peer.identities)}, no syncer of this run")
    if hello.protocol != PROTOCOL:
        return Refused(
            f"shard {hello.shard} speaks protocol {hello.protocol}, shard {rules.shard} {PROTOCOL}"
        )
    mine = run.uid, rules.shards, COORDINATOR
    if (hello.run_uid, hello.shards, rules.shard) != mine or not 0 < hello.shard < rules.shards:
        return Refused(
            f"shard {hello.shard} of {hello.shards} cannot follow shard {rules.shard} of {rules.shards}"
        )
    return None


def joined(hello: Hello) -> Joined:
    """The machine's view of a Hello."""
    return Joined(
        hello.unit,
        hello.incarnation,
        hello.host,
        hello.hosts,
        hello.seeded_step,
        shortened(hello.seed_message),
        hello.address,
    )


def shortened(message: str) -> str:
    """The beginning of a long one."""
    return message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 1]}…"


def malformed(header: Header, layout: Layout, codec: str) -> str:
    """What a contribution cannot be in this run, by its layout and codec; empty when it can."""
    part, p = header.part, header.part.round.fragment
    if not 0 <= p < len(layout.fragments):
        return f"fragment: {p} of {len(layout.fragments)} does not exist"
    most = layout.fragments[p].size + MOST_PADDING
    if not 0 <= part.start < part.stop <= part.padded <= most:
        return f"range: [{part.start}, {part.stop}) of {part.padded} elements, where there are {most} at most"
    if header.codec != codec or header.size != codecs.pushed_size(part.stop - part.start, header.codec):
        return f"{header.size} bytes of {header.codec} for [{part.start}, {part.stop}), not {codec}"
    for name, value in (("seconds", header.seconds), ("round_trip", header.round_trip)):
        if not 0 <= value <= TRANSFER_SECONDS:
            return f"{name}: {value} must be within 0 … {TRANSFER_SECONDS:g}"
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
    return Offered(part, header.seconds, header.round_trip)


def reported(session: Session, report: Report) -> Reported:
    """The machine's view of a report.

    Raises:
        ValueError: its step took a time that no step takes, it counts further than a host can, or no unit has begun so.
    """
    if wrong := beyond(report):
        raise ValueError(wrong)
    seconds = report.step_seconds
    if seconds != 0 and not SHORTEST_STEP <= seconds <= LONGEST_STEP:  # nor is NaN
        raise ValueError(f"step_seconds: {seconds} must be 0, or within {SHORTEST_STEP:g} … {LONGEST_STEP:g}")
    beginning = msgspec.structs.asdict(report.beginning) if report.beginning is not None else {}
    wrong = outside("beginning", beginning, {}) or outside("link", vars(report.link), {"busy_share": 1})
    if wrong:
        raise ValueError(wrong)
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
