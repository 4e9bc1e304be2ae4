"""The token ledger: sums, and the bounded form for a status."""

from __future__ import annotations

from collections.abc import Iterable

from atoll_operator.api.common import MAX_REASONS, MAX_WAITS, LedgerStatus
from atoll_runtime.contract import LedgerReport, UnitReport

OTHER = "Other"


def merged(reports: Iterable[LedgerReport]) -> int:
    """Merged token-fragments of all units."""
    return sum(report.merged for report in reports)


def shown(report: LedgerReport, fragments: int, unit: UnitReport | None = None) -> LedgerStatus:
    """The ledger for a status. If there are too many reasons, the smallest are summed as `Other`.

    Args:
        unit: the report of the unit whose ledger it is.
    """
    reasons = sorted(report.discarded, key=lambda reason: (-report.discarded[reason], reason))
    kept = reasons if len(reasons) <= MAX_REASONS else reasons[: MAX_REASONS - 1]
    discarded = {reason: report.discarded[reason] for reason in sorted(kept)}
    rest = sum(report.discarded[reason] for reason in reasons if reason not in discarded)
    if rest:
        discarded[OTHER] = discarded.get(OTHER, 0) + rest
    waits = tuple(unit.waits[:MAX_WAITS]) if unit is not None else ()
    sums = report.model_dump(include={"trained", "merged", "in_flight"})
    return LedgerStatus(fragments=fragments, **sums, discarded=discarded, waits=waits)
