"""What is new in a syncer's answer: what has to be looked at now, and figures, which can wait for their turn."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from atoll_operator.plan.run.shards import FeedState
from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport

RUN_FIGURES = frozenset(
    {
        "message", "global_step", "tokens", "loss", "tokens_per_second", "quorum", "rounds", "real_interval",
        "bytes_in", "bytes_out", "checkpoint", "units", "ledger", "time",
    }
)  # fmt: skip
"""Of a `SyncerStatus`. Its time alone is none: nothing is told of it."""
UNIT_FIGURES = frozenset(
    {
        "step", "inner_steps", "tokens", "loss", "tokens_per_second", "step_seconds", "contributions", "staleness",
    }
)  # fmt: skip
"""Of a `UnitReport`; that it has a loss at all is none."""
_UNSAID = frozenset({"units", "ledger", "checkpoint", "time"})
_FEED = attrgetter("reason", "message", "down")
_RUN = attrgetter(*(name for name in SyncerStatus.model_fields if name not in RUN_FIGURES))
_RUN_FIGURES = attrgetter(*sorted(RUN_FIGURES - _UNSAID))
_CHECKPOINT = attrgetter("newest_step", "uri", "error", "current")
_UNIT = attrgetter(*(name for name in UnitReport.model_fields if name not in UNIT_FIGURES))


@dataclass(frozen=True, slots=True)
class FeedNews:
    """What one round of polls brought."""

    run: bool = False
    """Whether the run has to look now."""
    every_unit: bool = False
    """Whether all its units have to, those that the syncer has not heard of too."""
    units: frozenset[str] = frozenset()
    """Else those that have to."""
    figures: bool = False
    """Whether figures of the run moved."""
    moved: frozenset[str] = frozenset()
    """Units of which figures moved, and nothing else."""
    of: int = 0
    """Units that were heard of."""

    def __bool__(self) -> bool:
        return self.run or self.every_unit or self.figures or bool(self.units or self.moved)


def compare(old: FeedState, new: FeedState) -> FeedNews:
    """From one state to the next; all units look when the syncer, or a part of it, comes, goes or changes its phase."""
    before, after = _units(old), _units(new)
    names = before.keys() | after.keys()
    if _serving(old) != _serving(new):
        return FeedNews(run=True, every_unit=True, figures=True, of=len(names))
    moved = {name for name in names if before.get(name) != after.get(name)}
    units = {name for name in moved if _unit(before.get(name)) != _unit(after.get(name))}
    return FeedNews(
        run=bool(units) or _FEED(old) != _FEED(new) or _told(old.status) != _told(new.status),
        units=frozenset(units),
        figures=bool(moved) or old.traffic != new.traffic or _figures(old.status) != _figures(new.status),
        moved=frozenset(moved - units),
        of=len(names),
    )


Said = tuple[UnitReport | None, LedgerReport | None]


def _units(state: FeedState) -> dict[str, Said]:
    status = state.status
    if status is None:
        return {}
    return {
        name: (status.units.get(name), status.ledger.get(name)) for name in {*status.units, *status.ledger}
    }


def _unit(said: Said | None) -> object:
    report = said[0] if said is not None else None
    return report and (_UNIT(report), report.loss is None)


def _serving(state: FeedState) -> tuple[bool, bool, str]:
    return state.answers, bool(state.down), state.status.phase if state.status is not None else ""


def _told(status: SyncerStatus | None) -> object:
    return status and (_RUN(status), _CHECKPOINT(status.checkpoint))


def _figures(status: SyncerStatus | None) -> object:
    return status and _RUN_FIGURES(status)
