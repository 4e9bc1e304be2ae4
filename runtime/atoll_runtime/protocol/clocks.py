"""Vector clocks: what each party knows of the progress of every party.

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
    """The clock of a shard's durable state. For each unit it has the merged tokens, because Θ depends on those.

    Tokens that units report are ahead of that and are left out. Other shards are left out too, because nothing durable
    depends on their clocks, which run ahead of their disks.
    """
    known = {shard(s): record["step"]}
    for name, each in record["units"].items():
        account = each["account"]
        merged = max(account["settled"].values(), default=0)
        known[unit(name, account["incarnation"])] = merged
    return known


def inconsistency(records: Mapping[str, Clock]) -> str:
    """Why the recorded clocks of the parties are not a consistent cut; empty if they are.

    A cut is consistent if no party knows more of another party than that party had done when it recorded itself. Then
    no message that was sent after the cut was received before it (Chandy and Lamport, 1985).
    """
    for who, own in sorted(records.items()):
        done = own.get(who, 0)
        for other, clock in sorted(records.items()):
            if clock.get(who, 0) > done:
                return f"{other} knows {who} at {clock[who]}, which recorded itself at {done}"
    return ""
