"""The token ledger: sums of it, and the bounded form in which a status shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from atoll_operator.api.common import MAX_REASONS, LedgerStatus
from atoll_runtime.contract import LedgerReport

OTHER = "Other"


def add(reports: Iterable[LedgerReport]) -> LedgerReport:
    """The sum; it balances when each part does."""
    trained = merged = in_flight = 0
    discarded: Counter[str] = Counter()
    for report in reports:
        trained += report.trained
        merged += report.merged
        in_flight += report.in_flight
        discarded.update(report.discarded)
    return LedgerReport(trained=trained, merged=merged, discarded=dict(discarded), in_flight=in_flight)


def share(ledger: Mapping[str, LedgerReport], unit: str) -> float | None:
    """Of the tokens merged, 0 to 1; None where the ledger knows no such unit, or nothing was merged."""
    merged = sum(report.merged for report in ledger.values())
    return ledger[unit].merged / merged if merged and unit in ledger else None


def shown(report: LedgerReport, fragments: int) -> LedgerStatus:
    """As a status holds it: reasons by name; the smallest are added up where there are too many."""
    reasons = sorted(report.discarded, key=lambda reason: (-report.discarded[reason], reason))
    kept = reasons if len(reasons) <= MAX_REASONS else reasons[: MAX_REASONS - 1]
    discarded = {reason: report.discarded[reason] for reason in sorted(kept)}
    rest = sum(report.discarded[reason] for reason in reasons if reason not in discarded)
    if rest:
        discarded[OTHER] = discarded.get(OTHER, 0) + rest
    return LedgerStatus(
        fragments=fragments,
        trained=report.trained,
        merged=report.merged,
        in_flight=report.in_flight,
        discarded=discarded,
    )
