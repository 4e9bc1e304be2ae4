"""Vector clocks: what each party knows of each party's progress.

Entries are `shard/<s>` (global step of that shard) and `unit/<name>/<incarnation>` (tokens that it has trained on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Clock = Mapping[str, int]


def shard(s: int) -> str:
    return f"shard/{s}"


def unit(name: str, incarnation: int) -> str:
    return f"unit/{name}/{incarnation}"


def vector(s: int, record: Mapping[str, Any]) -> dict[str, int]:
    """The clock of a shard's durable state: of each unit the tokens that are merged, for on those Θ depends.

    What units report besides runs ahead of it. Other shards are not in it: nothing durable depends on their clocks,
    which run ahead of their disks.
    """
    known = {shard(s): record["step"]}
    for name, each in record["units"].items():
        account = each["account"]
        merged = max(account["settled"].values(), default=0)
        known[unit(name, account["incarnation"])] = merged
    return known


def inconsistency(records: Mapping[str, Clock]) -> str:
    """Why the parties' recorded clocks are no consistent cut; empty when they are.

    A cut is consistent when nobody knows more of a party than that party had done when it recorded its own
    state: no message was received before the cut that was sent after it (Chandy and Lamport, 1985).
    """
    for who, own in sorted(records.items()):
        done = own.get(who, 0)
        for other, clock in sorted(records.items()):
            if clock.get(who, 0) > done:
                return f"{other} knows {who} at {clock[who]}, which recorded itself at {done}"
    return ""
