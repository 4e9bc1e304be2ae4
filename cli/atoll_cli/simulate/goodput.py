"""`atoll simulate goodput`: the useful share of the chips' time under failures."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from atoll_cli.errors import UsageError
from atoll_cli.simulate.goodput_constants import constants, in_words
from atoll_cli.simulate.goodput_options import (
    CHIPS,
    FLEET_OPTIONS,
    LEARNERS,
    METHODS,
    check_work,
    merged_share,
    read_case,
    read_days,
    read_fleet,
    read_grace,
    read_recovery,
    read_repeats,
    read_seed,
)
from atoll_cli.simulate.output import Column, Report, add_output_options, deliver

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_options(question: argparse.ArgumentParser) -> None:
    """Adds what only this question takes."""
    add = question.add_argument
    add("--method", metavar="M", help=f"{', '.join(METHODS)} (Atoll's own); without it, the published table")
    add("--chips", metavar="N", help="that train, such as 1.2M")
    add("--learners", metavar="M", help="islands; 1 for rigid and elastic")
    add("--mtbi", metavar="T", help="mean time between interruptions of one chip, 1y")
    add("--slice", metavar="CHIPS", help="chips that one interruption takes away, 256")
    add("--spares", metavar="N", help="slices of each learner that stand by, 0; they count as allocated")
    add("--quorum", metavar="K", help="learners that a merge needs, 1")
    add("--grace", metavar="G", help="0 or auto: whether a merge waits for more than K (merged_share), auto")
    add("--speeds", metavar="S,...", help="relative step times of equal shares of the chips, 1")
    add("--jitter", metavar="J", help="relative spread of each share's step time, 0")
    add("--notice", metavar="T", help="from the news of an interruption to the stop for it")
    add("--resize", metavar="T", help="pause to take slices out or in, or to start again")
    add("--patience", metavar="T", help="at most so long a slice that is back waits to share a pause")
    add("--repair", metavar="T", help="from an interruption until the hardware is back")
    add("--checkpoint", metavar="T", help="rigid: work between two restore points, 0")
    add("--in-place", metavar="T", help="the hosts stay healthy, and containers are back after T")
    add("--seed-source", metavar="S", help="checkpoint or peer: where a slice or a unit gets its state")
    add("--params", metavar="N", help="of the model, for the time to seed, 5B")
    add("--seed-gbps", metavar="G", help="Gbit/s at which one replica's state comes in")
    add("--days", metavar="D", help="to simulate, 1")
    add("--seed", metavar="S", help="of the random numbers, 0")
    add("--repeats", metavar="R", help="runs behind the mean and its interval, 8; at least 4")
    add(
        "--policies",
        action="store_true",
        help="beyond the paper: what raises goodput at 1.2M chips, and its price",
    )
    add_output_options(question)


def run(options: argparse.Namespace) -> int:
    """Answers for one fleet, with the published table, or with the policies.

    Raises:
        UsageError: an option's value cannot be used.
    """
    if options.policies:
        deliver(_policies(options), options)
    elif options.method is None and options.chips is None and options.learners is None:
        deliver(_published(options), options)
    else:
        deliver(_one(options), options)
    return 0


def _one(options: argparse.Namespace) -> Report:
    from atoll_runtime.simulate.fleet.account import CAUSES
    from atoll_runtime.simulate.fleet.goodput import estimate

    case = read_case(options)
    check_work(options, case.interruptions)
    grace = read_grace(options, case.method)
    answer = estimate([case])[0]
    row = {
        "method": case.method,
        "chips": case.fleet.chips,
        "learners": case.fleet.learners,
        "goodput": answer.goodput,
        "uptime": answer.uptime,
        "grace": grace,
        "merged_share": None if grace is None else merged_share(case.fleet, grace),
        "interval": list(answer.interval),
        "mtbi": case.fleet.mtbi_seconds,
        "days": case.seconds / 86_400,
        "seed": case.seed,
        "repeats": case.repeats,
        "allocated_chips": answer.allocated_chips,
        "interruptions_a_day": answer.interruptions_a_day,
        "share": dict(answer.share),
        "lost_chip_hours_a_day": {
            cause: answer.chip_hours_a_day(cause) for cause in CAUSES if cause != "useful"
        },
        "constants": constants(case),
    }
    lost = (
        f"{answer.share[cause]:7.2%}  {answer.chip_hours_a_day(cause):14,.0f}  {words}"
        for cause, words in CAUSES.items()
        if answer.share[cause] > 0
    )

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        shown = [cause for cause in CAUSES if cause != "useful" and answer.share[cause] > 0]
        axes.barh([CAUSES[cause] for cause in shown], [100 * answer.share[cause] for cause in shown])
        axes.invert_yaxis()
        axes.set_xlabel("lost, % of allocated chip-time")
        axes.set_title(
            f"{case.method}, {case.fleet.chips:,} chips, M={case.fleet.learners}: {answer.goodput:.1%}"
        )

    return Report(
        title="Goodput: useful training's share of allocated chip-time",
        columns=(
            Column("method", "METHOD"),
            Column("learners", "M"),
            Column("chips", "CHIPS", lambda chips: f"{chips:,}"),
            Column("goodput", "GOODPUT", lambda share: f"{share:.2%}"),
            Column("interval", "95 %", lambda pair: f"{pair[0]:.2%} to {pair[1]:.2%}"),
            Column("uptime", "UPTIME", lambda share: f"{share:.2%}"),
            Column("merged_share", "MERGED", lambda share: f"{share:.1%}"),
            Column("interruptions_a_day", "INTERRUPTIONS/DAY", lambda number: f"{number:,.0f}"),
        ),
        rows=(row,),
        notes=(
            "  SHARE  CHIP-HOURS/DAY  SPENT ON",
            *lost,
            f"constants, times in seconds: {in_words(constants(case))}",
        ),
        draw=draw,
    )


def _published(options: argparse.Namespace) -> Report:
    from atoll_cli.simulate.goodput_published import cases, published

    for name in ("quorum", "grace"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} {getattr(options, name)!r}: --learners is wanted with it")
    recovery, _ = read_recovery(options, "elastic")
    asked = cases(
        read_fleet(options, CHIPS, LEARNERS),
        recovery,
        read_days(options),
        read_seed(options),
        read_repeats(options),
    )
    check_work(options, sum(case.interruptions for case in asked))
    return published(asked)


def _policies(options: argparse.Namespace) -> Report:
    from atoll_cli.simulate.goodput_policies import policies
    from atoll_runtime.simulate.fleet.policies import cases

    for name in ("method", "chips", "learners", *FLEET_OPTIONS):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: not with --policies, which compares fixed ones")
    asked = cases(read_days(options) * 86_400, read_seed(options), read_repeats(options))
    check_work(options, sum(case.interruptions for case in asked))
    return policies(asked)
