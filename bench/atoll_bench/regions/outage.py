"""One region without its link for a while, in the midst of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atoll_bench.regions.decoupled import begun
from atoll_bench.regions.wan import Wan
from atoll_cli.errors import CommandError
from atoll_runtime.contract import LedgerReport, SyncerStatus

CUT_FROM, CUT_UNTIL = 0.2, 0.85


@dataclass
class Outage:
    """Called with each status of the run: cuts the region off, gives its link back, and notes what the units do."""

    wan: Wan
    scale: float
    region: str
    steps: int
    """Of the run: the cut begins when a fifth of them is made, and ends at `CUT_UNTIL` of them at the latest."""
    seconds: float
    """Of the cut, at most."""
    cut: SyncerStatus | None = None
    """The status at the cut."""
    back: SyncerStatus | None = None
    """The status when the link was back."""
    again: SyncerStatus | None = None
    """The first status in which the region was merged again."""

    def __call__(self, status: SyncerStatus) -> None:
        if self.cut is None:
            if status.global_step >= CUT_FROM * self.steps:
                self.wan.cut(self.region, self.scale, True)
                self.cut = status
        elif self.back is None:
            if status.time - self.cut.time >= self.seconds or status.global_step >= CUT_UNTIL * self.steps:
                self.wan.cut(self.region, self.scale, False)
                self.back = status
        elif self.again is None and self._merged(status) > self._merged(self.back):
            self.again = status

    def _merged(self, status: SyncerStatus) -> int:
        return status.units[self.region].contributions

    def document(self, end: SyncerStatus) -> dict[str, Any]:
        """What happened. Raises `CommandError` if the run ended during the cut."""
        if self.cut is None or self.back is None:
            raise CommandError(
                f"the run of {end.time - begun(end):.0f} s ended before the cut of {self.region} did"
            )
        steps = {name: unit.step - self.cut.units[name].step for name, unit in self.back.units.items()}
        return {
            "region": self.region,
            "from_s": self.cut.time - begun(end),
            "seconds": self.back.time - self.cut.time,
            "steps_meanwhile": steps,
            "merged_again_s": None if self.again is None else self.again.time - self.back.time,
            "incarnation": end.units[self.region].incarnation,
            "merged_share": {name: merged_share(ledger) for name, ledger in end.ledger.items()},
            "ledger_balances": all(balances(ledger) for ledger in end.ledger.values()),
        }


def merged_share(ledger: LedgerReport) -> float:
    """Part of the trained tokens that is merged."""
    return ledger.merged / max(1, ledger.trained)


def balances(ledger: LedgerReport) -> bool:
    return ledger.trained == ledger.merged + sum(ledger.discarded.values()) + ledger.in_flight
