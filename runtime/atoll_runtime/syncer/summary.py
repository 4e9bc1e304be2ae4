"""The status of the run, which shard 0 gives to the operator: its own, with a few figures of the other shards.

A shard owns whole tensors of every fragment, so the run is as far as its slowest shard. What a status says of a unit,
its ledger included, is what shard 0 sees.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from atoll_runtime.contract import SyncerStatus
from atoll_runtime.transport.messages import Figures

MAX_GROUPS = 4
"""The most different messages of shards that are shown."""


@dataclass
class Other:
    """Another shard, as shard 0 knows it."""

    away_since: float | None
    """Since when it has no session with shard 0, in Unix seconds. None while it has one."""
    figures: Figures | None = None
    """Its newest figures, from this session or an earlier one."""
    session: object = None
    """Identity of its newest session; None when it has ended."""

    @property
    def absence(self) -> str:
        """Why its tensors are not merged at the moment; empty when they are."""
        if self.away_since is None:
            return ""
        since = datetime.datetime.fromtimestamp(int(self.away_since), datetime.UTC)
        return f"no session with shard 0 since {since:%Y-%m-%dT%H:%M:%SZ}"


def summary(own: SyncerStatus, others: Sequence[Other]) -> SyncerStatus:
    """Returns the status of the run, from shard 0's own and the figures of shards 1, 2, …"""
    told = [other.figures for other in others if other.figures is not None]
    units = dict(own.units)
    for figures in told:
        for name, (incarnation, why) in figures.suspects.items():
            unit = units.get(name)
            if unit is not None and unit.incarnation == incarnation and not unit.suspect:
                units[name] = unit.model_copy(update={"suspect": why})
    messages = [other.absence or (other.figures.message if other.figures else "") for other in others]
    return own.model_copy(
        update={
            "message": join_messages([own.message, *messages]),
            "down": join_messages(["", *(other.absence for other in others)]),
            "units": units,
            **{name: min(getattr(each, name) for each in (own, *told)) for name in ("global_step", "tokens")},
            **{
                name: sum(getattr(each, name) for each in (own, *told))
                for name in ("rounds", "bytes_in", "bytes_out", "restarts")
            },
        }
    )


def join_messages(messages: Sequence[str]) -> str:
    """Joins the messages of shards 0, 1, …, to a text such as `shard 1: a; shards 0, 2: b`. Leaves empty ones out."""
    shards: dict[str, list[str]] = {}
    for index, text in enumerate(messages):
        shards.setdefault(text, []).append(str(index))
    if len(shards) == 1:
        return messages[0]
    parts = [
        f"shard{'s' if len(indices) > 1 else ''} {', '.join(indices)}: {text}"
        for text, indices in shards.items()
        if text
    ]
    more = [f"and {len(parts) - MAX_GROUPS} more"] if len(parts) > MAX_GROUPS else []
    return "; ".join([*parts[:MAX_GROUPS], *more])
