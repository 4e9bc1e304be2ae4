"""The stages of a heal, from the statuses of pods and the syncer's report. Their sum is the heal.

Pods report whole seconds, rounded down, and clocks of nodes differ a little. So each stage ends where the next one
begins, and between the end of the one before and the end of the heal.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll_operator.api.learnerunit import Heal, HealStages, LearnerUnitStatus
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.view import PodView
from atoll_runtime.contract import BeginningReport, UnitReport


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


def filled(
    status: LearnerUnitStatus, pods: Sequence[PodView], report: UnitReport | None
) -> LearnerUnitStatus:
    """The status with the last heal's stages as far as they are known. A merge may be reported before the step."""
    heal = status.last_heal
    if heal is None or heal.incarnation != status.incarnation or complete(heal):
        return status
    ours = report is not None and report.incarnation == heal.incarnation
    started = parse_time(heal.started_at)
    found = stages(started, started + heal.seconds, pods, report.beginning if report and ours else None)
    return status.model_copy(update={"last_heal": heal.model_copy(update={"stages": found})})


def news(old: LearnerUnitStatus, new: LearnerUnitStatus) -> HealStages | None:
    """The stages of the last heal, returned once, when all are known."""
    heal, known = new.last_heal, old.last_heal
    if heal is None or not complete(heal):
        return None
    told = known is not None and known.incarnation == heal.incarnation and complete(known)
    return None if told else heal.stages


def notice(heal: Heal, report: UnitReport | None) -> Notice:
    """The stages as text."""
    parts = [
        f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in heal.stages if seconds is not None
    ]
    text = f"{heal.seconds:.1f} s: {', '.join(parts)}"
    if report is not None and report.beginning is not None:
        beginning = report.beginning
        text += (
            f"; {beginning.loaded} of {beginning.loaded + beginning.compiled} programs came from the cache"
        )
    return Notice("Normal", "HealStages", text, f"{heal.incarnation}")


def complete(heal: Heal) -> bool:
    """Whether the learner's stages are known too."""
    return heal.stages.catch_up is not None


def _last(moments: Sequence[float | None]) -> float | None:
    known = [moment for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None
