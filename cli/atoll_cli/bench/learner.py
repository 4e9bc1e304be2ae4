"""`atoll bench learner`: an island's inner steps, with the exchange, against a plain loop's."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from atoll_cli.bench.telling import tell
from atoll_cli.errors import CommandError, UsageError, lacking
from atoll_cli.text import amount, table
from atoll_cli.values import count

if TYPE_CHECKING:
    from atoll_bench.learner import LearnerFigure

LONGEST_PHASE = 20
"""Seconds: the syncer takes a unit that stands still for longer than 30 s for silent."""


def add_options(learner: argparse.ArgumentParser) -> None:
    """The options of the bench."""
    learner.add_argument("--json", action="store_true", help="one JSON line a figure")
    learner.add_argument("--preset", default="10m", metavar="NAME", help="default %(default)s")
    learner.add_argument(
        "--batch", default="16", metavar="N", help="sequences of a step; default %(default)s"
    )
    learner.add_argument(
        "--length", default="128", metavar="N", help="tokens of a sequence; default %(default)s"
    )
    learner.add_argument(
        "--checkpoint-interval", default="50", metavar="N", help="global steps; default %(default)s"
    )
    learner.add_argument(
        "--pairs", default="10", metavar="N", help="phases of each loop, in turns; default %(default)s"
    )
    learner.add_argument("--seconds", default="8", metavar="N", help="of a phase, about; default %(default)s")
    learner.add_argument(
        "--cores",
        metavar="LEARNER/SYNCER",
        help="such as 0-2/3; default: a core each, then one core for both",
    )


def run(options: argparse.Namespace) -> int:
    """Raises `UsageError`: an option's value cannot be used; `CommandError`: nothing could be measured."""
    from atoll_runtime.contract import PRESETS

    batch = count("--batch", options.batch, most=1_048_576)
    length = count("--length", options.length, most=65_536, least=8)
    interval = count("--checkpoint-interval", options.checkpoint_interval, most=1000)
    pairs = count("--pairs", options.pairs, most=1000)
    seconds = count("--seconds", options.seconds, most=LONGEST_PHASE)
    if options.preset not in PRESETS:
        raise UsageError(f"--preset {options.preset!r}: one of {', '.join(PRESETS)} is wanted")
    try:
        from atoll_bench.cores import CoresError
        from atoll_bench.learner import BenchError, Cores, Setting, measure, placements
    except ImportError as error:
        raise lacking(error, "bench needs the packages of both ends", "operator,runtime") from error
    try:
        places = placements() if options.cores is None else [Cores.parse(options.cores)]
    except CoresError as error:
        raise UsageError(f"--cores {error}") from error
    if options.cores is None and len(places) == 1:
        print("one core alone may be used: learner and syncer share it", file=sys.stderr)
    setting = Setting(options.preset, batch, length, interval, pairs, seconds)
    try:
        tell("inner_steps_per_second", measure(setting, places), _table, as_json=options.json)
    except BenchError as error:
        raise CommandError(str(error)) from error
    return 0


def _table(figures: list[LearnerFigure]) -> str:
    head = (
        "PLACEMENT",
        "CORES",
        "PLAIN",
        "EXCHANGE",
        "RATIO",
        "QUARTILES",
        "OF CORE TIME",
        "MERGES",
        "CUTS",
        "IN",
        "OUT",
        "OTHERS",
    )
    return table(
        head,
        [
            (
                figure.placement,
                "/".join(",".join(map(str, cores)) for cores in (figure.learner_cores, figure.syncer_cores)),
                f"{figure.plain:.2f}/s",
                f"{figure.exchange:.2f}/s",
                f"{figure.ratio:.3f}",
                f"{figure.ratio_quartiles[0]:.3f} to {figure.ratio_quartiles[1]:.3f}",
                f"{figure.ratio_of_core_time:.3f}",
                f"{figure.merges} in {figure.steps} steps",
                str(figure.cuts),
                amount(figure.bytes_in, "B"),
                amount(figure.bytes_out, "B"),
                f"{figure.others:.1f} cores",
            )
            for figure in figures
        ],
    )
