"""`atoll simulate goodput`: useful share of the chips' time under failures, for one fleet or for the paper's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from atoll_cli.arguments import Option, Values, choice, count, number, refuse, seconds
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Report, percent, show, words

if TYPE_CHECKING:
    from atoll_runtime.simulate.fleet.goodput import Case

METHODS = ("rigid", "elastic", "decoupled", "unit")
CHIPS, LEARNERS = 1_200_000, 8
"""Defaults for one fleet."""
MOST_INTERRUPTIONS = 20_000_000
"""The most that one command simulates: a few minutes on one core."""

OPTIONS = (
    Option("--method", "M", choice(*METHODS), f"{', '.join(METHODS)} (Atoll's own); default decoupled if --chips or "
        "--learners is given, else the published table"),
    Option("--chips", "N", count(1, 10**9), "that train, such as 1.2M"),
    Option("--learners", "M", count(1, 4096), f"islands, {LEARNERS}; rigid and elastic are one, whatever M is"),
    Option("--mtbi", "T", seconds(), "mean time between interruptions of one chip, 1y"),
    Option("--quorum", "K", count(1, 4096), "learners that a merge needs, 1"),
    Option("--notice", "T", seconds(zero=True), "from the news of an interruption to the stop for it"),
    Option("--resize", "T", seconds(zero=True), "pause to take slices out or in, or to start again"),
    Option("--patience", "T", seconds(zero=True), "at most so long a slice that is back waits to share a pause"),
    Option("--repair", "T", seconds(zero=True), "from an interruption until the hardware is back"),
    Option("--days", "D", number(0, 36_525, above=True), "to simulate, eight times over", default="1"),
    Option("--seed", "S", count(0, 2**53 - 1), "of the random numbers", default="0"),
)  # fmt: skip

RECOVERY = {"notice": "notice", "resize": "pause", "patience": "patience", "repair": "repair"}
"""Options and the fields of `Recovery` that they set."""
FLEET = {"mtbi": "mtbi_seconds", "quorum": "quorum"}
"""Options and the fields of `Fleet` that they set."""
USED_BY = {"patience": ("elastic", "decoupled"), "resize": ("rigid", "elastic", "decoupled")}
"""Options that only these methods use."""


def answer(found: Values) -> Report:
    """Answer for one fleet, or return the published table. Raises `UsageError`."""
    if found["method"] is None and found["chips"] is None and found["learners"] is None:
        refuse(found, ("quorum",), "--learners is wanted with it")
        return _published(found)
    method = found["method"] or "decoupled"
    for name, methods in USED_BY.items():
        if method not in methods:
            refuse(found, (name,), f"goes with --method {', '.join(methods)}, not with {method}")
    chips = found["chips"] or CHIPS
    learners = 1 if method in ("rigid", "elastic") else found["learners"] or LEARNERS
    if learners > chips:
        raise UsageError(
            f"--learners '{learners}': more than the chips there are ({chips}); a learner needs one"
        )
    if (found["quorum"] or 1) > learners:
        raise UsageError(f"--quorum '{found['quorum']}': a whole number from 1 to {learners} is wanted")
    (case,) = _cases(found, [(method, learners, chips)])
    return _of_one(case)


def _cases(found: Values, fleets: Iterable[tuple[Any, int, int]]) -> list[Case]:
    """Return what to simulate, by method, learners and chips. Raises `UsageError` if that would take hours."""
    from atoll_runtime.simulate.fleet.goodput import Case
    from atoll_runtime.simulate.fleet.setting import DAY, Fleet, Recovery

    def given(names: Mapping[str, str]) -> dict[str, Any]:
        return {field: found[name] for name, field in names.items() if found[name] is not None}

    cases = [
        Case(
            fleet=Fleet(chips=chips, learners=learners, **given(FLEET)),
            method=method,
            recovery=Recovery(**given(RECOVERY)),
            seconds=found["days"] * DAY,
            seed=found["seed"],
        )
        for method, learners, chips in fleets
    ]
    if (interruptions := sum(case.interruptions for case in cases)) > MOST_INTERRUPTIONS:
        raise UsageError(
            f"--days {found['days']:g}: {interruptions:,.0f} interruptions over all repeats; at most "
            f"{MOST_INTERRUPTIONS:,} are simulated: a longer --mtbi or fewer --days are wanted"
        )
    return cases


def _published(found: Values) -> Report:
    """Return a row for each cell of the grid. The notes summarise the errors of the published cells."""
    from atoll_runtime.simulate.fleet.goodput import estimate
    from atoll_runtime.simulate.fleet.published import CALIBRATED, GRID

    rows: list[dict[str, Any]] = []
    for case, (cell, known) in zip(_cases(found, GRID), GRID.items(), strict=True):
        result = estimate(case)
        rows.append(
            {
                "method": case.method,
                "learners": case.fleet.learners,
                "chips": case.fleet.chips,
                "published_goodput": None if known is None else known / 100,
                "goodput": result.goodput,
                "interval": list(result.interval),
                "error_points": None if known is None else 100 * result.goodput - known,
                "calibrates": CALIBRATED.get(cell),
                "uptime": result.uptime,
                "constants": _constants(case),
            }
        )
    cells = [row for row in rows if row["published_goodput"] is not None]
    every = [abs(row["error_points"]) for row in cells]
    predicted = [abs(row["error_points"]) for row in cells if row["calibrates"] is None]
    return Report(
        title="Goodput, published and simulated",
        columns=tuple(name for name in rows[0] if name != "constants"),
        rows=tuple(rows),
        notes=(
            f"{len(every)} published cells: mean error {fmean(every):.1f} points, largest {max(every):.1f}; of the "
            f"{len(predicted)} that calibrate nothing: {fmean(predicted):.1f} and {max(predicted):.1f}.",
            f"One set of constants for every cell, times in seconds: {show('constants', rows[0]['constants'])}.",
        ),
    )


def _of_one(case: Case) -> Report:
    from atoll_runtime.simulate.fleet.goodput import estimate
    from atoll_runtime.simulate.fleet.setting import DAY
    from atoll_runtime.simulate.fleet.timeline import CAUSES

    found = estimate(case)
    row = {
        "method": case.method,
        "chips": case.fleet.chips,
        "learners": case.fleet.learners,
        "goodput": found.goodput,
        "uptime": found.uptime,
        "interval": list(found.interval),
        "mtbi": case.fleet.mtbi_seconds,
        "days": case.seconds / DAY,
        "seed": case.seed,
        "interruptions_a_day": found.interruptions_a_day,
        "share": dict(found.share),
        "lost_chip_hours_a_day": {
            cause: share * case.fleet.chips * 24 for cause, share in found.share.items() if cause != "useful"
        },
        "constants": _constants(case),
    }
    spent = [
        f"{percent(found.share[cause]):>9}  {words(cause)}: {what}"
        for cause, what in CAUSES.items()
        if found.share[cause] > 0
    ]
    return Report(
        title="Goodput: useful training's share of the chips' time",
        columns=("method", "learners", "chips", "goodput", "interval", "uptime", "interruptions_a_day"),
        rows=(row,),
        notes=(*spent, f"constants, times in seconds: {show('constants', row['constants'])}"),
    )


def _constants(case: Case) -> dict[str, Any]:
    """Return the constants that an answer depends on, besides the values of the question. Times are in seconds."""
    heal = {f"heal_{name}": value for name, value in asdict(case.heal).items()}
    fleet = {"slice_chips": case.fleet.slice_chips, "quorum": case.fleet.quorum}
    return {**fleet, **asdict(case.recovery), **(heal if case.method == "unit" else {})}
