"""`atoll simulate scavenge`: what a run gains from learners that are there at night alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.simulate.output import Column, Report, add_output_options, deliver
from atoll_cli.values import count, number, numbers, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll_runtime.simulate.fleet.scavenge import Setting

PUBLISHED = {
    "data-parallel": {0.0: 1.0, 1.0: 1.02, 3.0: 0.80},
    "decoupled": {0.0: 1.0, 1.0: 0.75, 3.0: 0.62},
}
"""Wall-clock relative to no extra learners, by extra compute at night (arXiv 2604.21428)."""
HOUR = 3600.0


def add_options(question: argparse.ArgumentParser) -> None:
    """Adds what only this question takes."""
    for name, default, what in (
        ("--learners", "4", "by day"),
        ("--extra", "0,1,3", "more at night, as multiples of those"),
        ("--night-hours", "12", "of 24"),
        ("--work-hours", "24", "that the day's learners take alone"),
        ("--join", "3m", "from a learner's start to its first step that counts"),
        ("--reconfigure", "10m", "data-parallel stands still at a change"),
        ("--change-every", "23m", "one of the night's learners is exchanged for another"),
    ):
        question.add_argument(name, metavar="VALUE", default=default, help=f"{what} (default %(default)s)")
    add_output_options(question)


def run(options: argparse.Namespace) -> int:
    """Computes a row for each method and number of extra learners.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: a row's work is never done.
    """
    from atoll_runtime.simulate.fleet.scavenge import Setting, hours_to_work

    setting = _setting(options)
    extras = sorted({0.0, *numbers("--extra", options.extra, most=1000)})
    rows = []
    for method in ("data-parallel", "decoupled"):
        for extra in extras:
            more = round(extra * setting.learners)
            if abs(more - extra * setting.learners) > 1e-6:
                raise UsageError(
                    f"--extra {options.extra!r}: {extra:g} times {setting.learners} learners is no whole number"
                )
            try:
                hours = hours_to_work(setting, method, more)
            except ValueError as error:
                raise CommandError(
                    f"simulate scavenge: {method} with {more} more at night: {error}"
                ) from error
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
                    **{f"{name}_hours": getattr(setting, name) for name in ("day", "night", "work", "join")},
                    **{f"{name}_hours": getattr(setting, name) for name in ("reconfigure", "change")},
                    "allreduce": setting.allreduce,
                }
            )
    title = f"{setting.learners} learners by day, more for the {setting.night:g} hours of the night"
    report = Report(title, COLUMNS, tuple(rows), _notes(setting), lambda figure: _draw(figure, rows))
    deliver(report, options)
    return 0


def _setting(options: argparse.Namespace) -> Setting:
    from atoll_runtime.simulate.fleet.scavenge import Setting

    night = number("--night-hours", options.night_hours, most=24, above=True)
    change = seconds("--change-every", options.change_every)
    if change < 60:
        raise UsageError(f"--change-every {options.change_every!r}: at least 1m is wanted")
    return Setting(
        learners=count("--learners", options.learners, most=10_000),
        day=24 - night,
        night=night,
        work=number("--work-hours", options.work_hours, most=10_000, above=True),
        join=seconds("--join", options.join) / HOUR,
        reconfigure=seconds("--reconfigure", options.reconfigure) / HOUR,
        change=change / HOUR,
    )


def _notes(setting: Setting) -> tuple[str, ...]:
    return (
        "The run begins in the morning. A learner that joins counts after "
        f"{60 * setting.join:g} min, the others train on meanwhile.",
        f"Data-parallel stands still for {60 * setting.reconfigure:g} min at dusk, at dawn and at every change of the "
        f"night's pool, one each {60 * setting.change:g} min (calibrated on one cell: data-parallel at +100%).",
        f"Its batch stays; the exposed all-reduce is {setting.allreduce:.3f}·(n−1)/n of a day's compute in a step.",
    )


def _percent(value: float) -> str:
    return f"+{100 * value:g}%"


COLUMNS = (
    Column("method", "method"),
    Column("extra", "extra", _percent),
    Column("learners_night", "at night"),
    Column("hours", "hours", lambda value: f"{value:.1f}"),
    Column("relative_time", "relative", lambda value: f"{value:.3f}"),
    Column("published", "published", lambda value: f"{value:.2f}"),
    Column("error", "error", lambda value: f"{value:+.3f}"),
)


def _draw(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    """Relative time against extra compute, with the published points."""
    axes = figure.subplots()
    for method, colour in (("data-parallel", "tab:red"), ("decoupled", "tab:blue")):
        mine = [row for row in rows if row["method"] == method]
        axes.plot(
            [100 * row["extra"] for row in mine],
            [row["relative_time"] for row in mine],
            color=colour,
            marker=".",
            label=method,
        )
        told = [(100 * row["extra"], row["published"]) for row in mine if row["published"] is not None]
        if told:
            axes.scatter(*zip(*told, strict=True), color=colour, marker="x", label=f"{method}, published")
    axes.set_xlabel("extra learners at night, per cent")
    axes.set_ylabel("wall-clock, relative to none")
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.set_title("Learners that come for the night")
