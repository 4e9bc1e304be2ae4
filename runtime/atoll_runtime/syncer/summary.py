"""Combines the status of all shards into the status of the run, which shard 0 gives to the operator.

A shard owns whole tensors of every fragment, so the run is as far as its slowest shard. Units report to shard 0, so
shard 0 says what they do. Figures include every shard that has ever reported. Unit states include only shards with a
session now.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport, most_waits

MAX_GROUPS = 4
"""The most different messages of shards that are shown."""


@dataclass
class Other:
    """Another shard, as shard 0 knows it."""

    away_since: float | None
    """Since when it has no session with shard 0, in Unix seconds. None while it has one."""
    report: SyncerStatus | None = None
    """Its newest report, from this session or an earlier one."""
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
    """Returns the status of the run, from shard 0's own and those of shards 1, 2, …"""
    reports = [own, *(other.report for other in others if other.report is not None)]
    here = [own, *(other.report for other in others if other.report is not None and not other.absence)]
    owning, serving = _with_tensors(reports), _with_tensors(here)
    finished = len(here) == own.shards and all(report.phase == "Finished" for report in here)
    most = most_waits(sum(unit.hosts > 0 for unit in own.units.values()))
    messages = [other.absence or (other.report.message if other.report else "") for other in others]
    return own.model_copy(
        update={
            "phase": "Finishing" if own.phase == "Finished" and not finished else own.phase,
            "message": join_messages([own.message, *messages]),
            "down": join_messages(["", *(other.absence for other in others)]),
            "global_step": min(report.global_step for report in owning),
            "tokens": min(report.tokens for report in owning),
            "real_interval": max(report.real_interval for report in owning),
            **{
                name: sum(getattr(report, name) for report in reports)
                for name in ("rounds", "bytes_in", "bytes_out", "restarts", "fragments")
            },
            "units": {name: _unit(unit, name, serving, most) for name, unit in own.units.items()},
            "ledger": {
                name: LedgerReport.total([report.ledger[name] for report in owning if name in report.ledger])
                for name in sorted({name for report in owning for name in report.ledger})
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


def _with_tensors(reports: Sequence[SyncerStatus]) -> Sequence[SyncerStatus]:
    """Leaves out shards that own no tensors, unless no shard owns any."""
    return [report for report in reports if report.fragments] or reports


def _unit(own: UnitReport, name: str, shards: Sequence[SyncerStatus], most: int) -> UnitReport:
    """Returns a unit's report: the least that any shard has. A shard with only an older incarnation has nothing.

    `most`: waits that it lists.
    """
    reports = [shard.units.get(name) for shard in shards]
    seen = [report for report in reports if report is not None and report.incarnation == own.incarnation]
    known = len(seen) == len(reports)
    merged = [report.first_merge_time for report in seen if report.first_merge_time is not None]
    hosts = min((report.hosts for report in seen), default=0) if known else 0
    contributions = min((report.contributions for report in seen), default=0) if known else 0
    gone, joined = not own.hosts or (known and not hosts), "Learning" if contributions else "Joining"
    return own.model_copy(
        update={
            "hosts": hosts,
            "contributions": contributions,
            **{name: sum(getattr(report, name) for report in seen) for name in ("refused", "repeated")},
            "refusals": dict(sum((Counter(report.refusals) for report in seen), Counter[str]())),
            "suspect": next((report.suspect for report in seen if report.suspect), ""),
            "state": "Gone" if gone else joined,
            "staleness": max((report.staleness for report in seen), default=own.staleness),
            "first_merge_time": max(merged) if known and len(merged) == len(reports) else None,
            "waits": [wait for report in seen for wait in report.waits][:most],
        }
    )
