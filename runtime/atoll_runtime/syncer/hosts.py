"""The connected hosts and the messages that wait for each; which hosts and shards are refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_runtime.contract import MOST_UNITS, RunContract, identity
from atoll_runtime.protocol.effects import Effect, Evict, Publish, Release, SendPull
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.identifiers import MOST_TOKENS
from atoll_runtime.protocol.messages import Hello
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.protocol.units import Unit
from atoll_runtime.transport.messages import PROTOCOL, Announce, Fenced, Over, Pull, Refused, ShardHello
from atoll_runtime.transport.transport import Peer
from atoll_runtime.transport.wire import Down

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Messages that may wait for one host. Beyond that it is disconnected, and starts again with a Hello."""
MOST_HOSTS = 4096
"""The most hosts of one unit."""


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
            case Publish(p, version, leasts):
                for unit in self._open:
                    self.send(unit, Announce(p, version, leasts.get(unit, 0)))
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


def stranger(run: RunContract, peer: Peer, unit: str) -> str:
    """Returns why the peer's certificate does not allow it to be a host of `unit`; empty when it does."""
    name = identity(run.namespace, run.name, "unit", unit)
    return "" if peer.may_be(name) else f"the certificate names {', '.join(peer.identities)}, not {name}"


def refusal(
    run: RunContract, layout: Layout, peer: Peer, hello: Hello, units: Mapping[str, Unit]
) -> Refused | Fenced | None:
    """Returns why this host cannot take part; None when it can. `units`: all units that the shard knows."""
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
    }
    for what, (found, want) in wanted.items():
        if found != want:
            return Refused(f"{what}: {found!r} where this run has {want!r}")
    if hello.incarnation < 1 or not 0 <= hello.host < hello.hosts:
        return Refused(f"host {hello.host} of {hello.hosts}, incarnation {hello.incarnation}: no such host")
    if hello.hosts > MOST_HOSTS:
        return Refused(f"{hello.hosts} hosts: a unit has {MOST_HOSTS} at most")
    known = units.get(hello.unit)
    if known is None and len(units) >= MOST_UNITS:
        return Refused(f"{hello.unit}: this run has had {len(units)} units, and has place for no more")
    if known is not None and hello.incarnation < known.incarnation:
        return Fenced(known.incarnation)
    if known is not None and hello.incarnation > known.incarnation and known.account.tokens > MOST_TOKENS:
        return Refused(
            f"{hello.unit}: it has claimed {known.account.tokens} tokens, and the ledger has no place for more"
        )
    return None


def shard_refusal(run: RunContract, rules: Rules, peer: Peer, hello: ShardHello) -> Refused | None:
    """Returns why shard 0 refuses this peer as another shard of the run; None when it accepts it."""
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
