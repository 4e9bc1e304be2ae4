"""`atoll bench merge`: the syncer's merge against a copy of the same bytes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from atoll_cli.bench.telling import tell
from atoll_cli.errors import UsageError, lacking
from atoll_cli.text import amount, table
from atoll_cli.values import count

if TYPE_CHECKING:
    from atoll_bench.merge import MergeFigure


def add_options(merge: argparse.ArgumentParser) -> None:
    """The options of the bench."""
    merge.add_argument("--json", action="store_true", help="one JSON line a figure")
    merge.add_argument("--learners", default="4,8", metavar="M,…", help="default %(default)s")
    merge.add_argument(
        "--parameters",
        default="256M",
        metavar="N",
        help="at least so many; default %(default)s; a merge's fixed 0.3 ms count the more, the fewer",
    )
    merge.add_argument("--fragments", default="24", metavar="P", help="default %(default)s")
    merge.add_argument("--codec", choices=("bf16", "float32"), help="default: one after the other")
    merge.add_argument("--rule", choices=("RDA", "Mean"), default="RDA", help="default %(default)s")
    merge.add_argument(
        "--repeat", default="5", metavar="N", help="times the whole model; default %(default)s"
    )
    merge.add_argument("--threads", metavar="N", help="default: all cores")


def run(options: argparse.Namespace) -> int:
    """Raises `UsageError`: an option's value cannot be used; `CommandError`: nothing could be measured."""
    learners = [count("--learners", text, most=256) for text in options.learners.split(",")]
    parameters = count("--parameters", options.parameters, most=10**10)
    fragments = count("--fragments", options.fragments, most=1024)
    repeat = count("--repeat", options.repeat, most=1000)

    try:
        from atoll_bench.merge import CODECS, BenchError, all_cores, layout_of, measure
    except ImportError as error:
        raise lacking(error, "bench needs the runtime's packages", "runtime") from error

    threads = all_cores() if options.threads is None else count("--threads", options.threads, most=1024)
    try:
        layout = layout_of(parameters, fragments)
    except BenchError as error:
        raise UsageError(str(error)) from error
    found = (
        measure(layout, learner_count, codec, options.rule, threads, repeat)
        for codec in (CODECS if options.codec is None else [options.codec])
        for learner_count in learners
    )
    tell("merge_bytes_per_second", found, _table, as_json=options.json)
    return 0


def _table(figures: list[MergeFigure]) -> str:
    head = (
        "LEARNERS",
        "CODEC",
        "MERGE",
        "COPY",
        "RATIO",
        "QUARTILES",
        "WITH SCAN",
        "SCAN (1 THREAD)",
        "PEAK",
    )
    return table(
        head,
        [
            (
                str(figure.learners),
                figure.codec,
                amount(figure.value, "B/s"),
                amount(figure.copy, "B/s"),
                f"{figure.ratio:.2f}",
                f"{figure.ratio_spread[0]:.2f} to {figure.ratio_spread[1]:.2f}",
                f"{figure.ratio_with_scan:.2f}",
                amount(figure.scan_bytes_per_second, "B/s"),
                amount(figure.peak_bytes, "B"),
            )
            for figure in figures
        ],
    )
