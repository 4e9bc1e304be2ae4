"""A heal (`status.lastHeal`, `status.lost`): it begins with a failure, and ends with a merge, or with the end of the
unit or its run.

Its stages come from the statuses of pods and the syncer's report, and their sum is the heal. Pods report whole seconds,
rounded down, and clocks of nodes differ a little. So each stage ends where the next one begins, and between the end of
the one before and the end of the heal.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll_operator.api.learnerunit import Heal, HealStages, LearnerUnitStatus
from atoll_operator.plan import cost
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import Notice
from atoll_operator.plan.pods.view import PodView
from atoll_runtime.contract import BeginningReport, UnitReport


def last_reason(status: LearnerUnitStatus) -> str:
    return status.last_failure.reason if status.last_failure is not None else "Lost"


def ended(status: LearnerUnitStatus, moment: float) -> tuple[LearnerUnitStatus, Heal | None]:
    """The status without a heal under way, whose cost is added to `lost`; and that heal."""
    if status.heal_start_time is None:
        return status, None
    reason, started = status.heal_reason or last_reason(status), parse_time(status.heal_start_time)
    spent = cost.of_heal(max(moment - started, 0.0), status.chips, status.step_seconds)
    lost = cost.with_heal(status.lost, reason, spent)
    heal = Heal(
        incarnation=status.incarnation,
        reason=reason,
        started_at=format_time(started),
        **spent.model_dump(exclude={"failures"}),
    )
    return status.model_copy(update={"heal_start_time": None, "heal_reason": "", "lost": lost}), heal


def stages(
    started: float, merged: float, pods: Sequence[PodView], beginning: BeginningReport | None
) -> HealStages:
    """Seconds of each stage. A stage whose end is not known is None, and its time belongs to the next known one.

    Args:
        started, merged: Unix seconds of the failure, and of the first merge after it.
        pods: of the gang.
        beginning: as the unit's host 0 told it.
    """
    ends = {
        "schedule": _last([pod.scheduled_at for pod in pods]),
        "pull": _last([pod.started_at for pod in pods]),
    }
    if beginning is not None:
        ends |= {"start": beginning.joined, "first_step": beginning.stepped, "catch_up": merged}
    seconds: dict[str, float] = {}
    at = started
    for name, end in ends.items():
        if end is not None:
            at, before = min(max(end, at), merged), at
            seconds[name] = at - before
    if beginning is not None:
        first_step = seconds.pop("first_step")
        seconds["compile"] = min(beginning.compiling, first_step)
        seconds["restore"] = first_step - seconds["compile"]
    return HealStages(**{name: round(value, 2) for name, value in seconds.items()})


def with_stages(
    status: LearnerUnitStatus, pods: Sequence[PodView], report: UnitReport | None
) -> tuple[LearnerUnitStatus, HealStages | None]:
    """The status with the last heal's stages as far as they are known; and the stages, once all are. A merge may be
    reported before the step."""
    heal = status.last_heal
    if heal is None or heal.incarnation != status.incarnation or heal.stages.catch_up is not None:
        return status, None
    beginning = report.beginning if report and report.incarnation == heal.incarnation else None
    started = parse_time(heal.started_at)
    found = stages(started, started + heal.seconds, pods, beginning)
    status = status.model_copy(update={"last_heal": heal.model_copy(update={"stages": found})})
    return status, found if found.catch_up is not None else None


def stages_notice(heal: Heal, report: UnitReport | None) -> Notice:
    """The stages as text."""
    parts = [
        f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in heal.stages if seconds is not None
    ]
    text = f"{heal.seconds:.1f} s: {', '.join(parts)}"
    if report is not None and (beginning := report.beginning) is not None:
        programs = beginning.loaded + beginning.compiled
        text += f"; {beginning.loaded} of {programs} programs came from the cache"
    return Notice("Normal", "HealStages", text, f"{heal.incarnation}")


def _last(moments: Sequence[float | None]) -> float | None:
    known = [moment for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None
