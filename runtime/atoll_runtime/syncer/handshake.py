"""Checks who may take part in a run: hosts and shards that begin a session."""

from __future__ import annotations

from collections.abc import Mapping

from atoll_runtime.contract import RunContract, identity
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.messages import Hello
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.protocol.units import Unit
from atoll_runtime.transport.messages import PROTOCOL, Fenced, Refused, ShardHello
from atoll_runtime.transport.transport import Peer

MOST_UNITS = 8192
"""The most units in a run's life: twice those of 16 pools of 256. The token ledger keeps units that never return."""
MOST_HOSTS = 4096
"""The most hosts of one unit."""


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
        "fragments": (len(hello.versions), len(layout.fragments)),
    }
    for field, (found, want) in wanted.items():
        if found != want:
            return Refused(f"{field}: {found!r} where this run has {want!r}")
    if hello.incarnation < 1 or not 0 <= hello.host < hello.hosts:
        return Refused(f"host {hello.host} of {hello.hosts}, incarnation {hello.incarnation}: no such host")
    if hello.hosts > MOST_HOSTS:
        return Refused(f"{hello.hosts} hosts: a unit has {MOST_HOSTS} at most")
    known = units.get(hello.unit)
    if known is None and len(units) >= MOST_UNITS:
        return Refused(f"{hello.unit}: this run has had {len(units)} units, and has place for no more")
    if known is not None and hello.incarnation < known.incarnation:
        return Fenced(known.incarnation)
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
