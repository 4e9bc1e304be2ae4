"""`atoll simulate scavenge`: what a run gains from learners that are present only at night."""

from __future__ import annotations

from atoll_cli.arguments import Option, Values, count, number, several
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Report

PUBLISHED = {
    "data-parallel": {0.0: 1.0, 1.0: 1.02, 3.0: 0.80},
    "decoupled": {0.0: 1.0, 1.0: 0.75, 3.0: 0.62},
}
"""Wall-clock time relative to no extra learners, by extra compute at night (arXiv 2604.21428)."""
TIMES = ("day", "night", "work", "join", "reconfigure", "change")
"""Fields of the setting, in hours."""
OPTIONS = (
    Option("--learners", "N", count(1, 10_000), "by day", default="4"),
    Option("--extra", "LIST", several(number(most=1000)), "more at night, as multiples of those",
           default="0,1,3"),
    Option("--night-hours", "HOURS", number(0, 24, above=True), "of 24", default="12"),
)  # fmt: skip


def answer(found: Values) -> Report:
    """Return a row for each method and number of extra learners. Raises `UsageError`."""
    from atoll_runtime.simulate.fleet.scavenge import Setting, hours_to_work

    night = found["night_hours"]
    setting = Setting(learners=found["learners"], day=24 - night, night=night)
    rows = []
    for method in ("data-parallel", "decoupled"):
        for extra in sorted({0.0, *found["extra"]}):
            more = round(extra * setting.learners)
            if abs(more - extra * setting.learners) > 1e-6:
                raise UsageError(f"--extra '{extra:g}': times {setting.learners} learners is no whole number")
            hours = hours_to_work(setting, method, more)
            relative = hours / setting.work
            published = PUBLISHED[method].get(extra) if setting == Setting() else None
            rows.append(
                {
                    "method": method,
                    "extra": extra,
                    "learners_day": setting.learners,
                    "learners_night": setting.learners + more,
                    "hours": hours,
                    "relative_time": relative,
                    "published": published,
                    "error": None if published is None else relative - published,
                    **{f"{name}_hours": getattr(setting, name) for name in TIMES},
                    "allreduce": setting.allreduce,
                }
            )
    return Report(
        title=f"{setting.learners} learners by day, more for the {setting.night:g} hours of the night",
        columns=("method", "extra", "learners_night", "hours", "relative_time", "published", "error"),
        rows=tuple(rows),
        notes=(
            "The run begins in the morning. A learner that joins counts after "
            f"{60 * setting.join:g} min, the others train on meanwhile.",
            f"Data-parallel stands still for {60 * setting.reconfigure:g} min at dusk, at dawn and at every change of "
            f"the night's pool, one each {60 * setting.change:g} min (calibrated on one cell: data-parallel, extra 1).",
            f"Its batch stays; the exposed all-reduce is {setting.allreduce:.3f}·(n−1)/n of a day's compute in a step.",
        ),
    )
