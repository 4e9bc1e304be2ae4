"""`atoll bench operator`: heals and creations on a real API server with fake nodes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from atoll_cli.bench.telling import tell
from atoll_cli.errors import CommandError, UsageError, lacking
from atoll_cli.text import table
from atoll_cli.values import count

if TYPE_CHECKING:
    from atoll_bench.verdict import Figure as OperatorFigure


def add_options(operator: argparse.ArgumentParser) -> None:
    """The options of the bench."""
    operator.add_argument("--json", action="store_true", help="one JSON line a figure")
    operator.add_argument(
        "--case",
        default="a,b,c,d,e",
        metavar="C,…",
        help="a create, b one pod fails, c fifty fail, d idle, e fails while the operator is down; default all",
    )
    operator.add_argument("--repeat", default="3", metavar="N", help="rounds; default %(default)s")
    operator.add_argument(
        "--scheduler-qps",
        metavar="N",
        help="requests a second of kube-scheduler; its default of 50 bounds (a) and (c), their limit included",
    )


def run(options: argparse.Namespace) -> int:
    """Raises `UsageError`: an option's value cannot be used; `CommandError`: nothing could be measured."""
    repeat = count("--repeat", options.repeat, most=100)
    qps = (
        None
        if options.scheduler_qps is None
        else count("--scheduler-qps", options.scheduler_qps, most=10_000)
    )
    try:
        from atoll_bench.client import BenchError
        from atoll_bench.operator import measure
        from atoll_bench.verdict import CASES
        from atoll_local.errors import ClusterError, HostError
    except ImportError as error:
        raise lacking(
            error,
            "bench operator needs the packages of the operator and of the local cluster",
            "operator,runtime,local",
        ) from error
    cases = options.case.split(",")
    if not set(cases) <= set(CASES):
        raise UsageError(f"--case {options.case!r}: of {','.join(CASES)} is wanted")
    try:
        found = measure(frozenset(cases), repeat, lambda text: print(text, file=sys.stderr, flush=True), qps)
    except (BenchError, ClusterError, HostError) as error:
        raise CommandError(str(error)) from error
    tell("operator", found, _table, as_json=options.json)
    return 0


def _table(figures: list[OperatorFigure]) -> str:
    def text(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    head = ("CASE", "PODS", "FIGURE", "UNIT", "MEDIAN", "SPREAD", "TARGET", "LIMIT", "RATIO", "TARGET", "MET")
    return table(
        head,
        [
            (
                figure.case,
                f"{figure.units} x {figure.pods // figure.units}",
                figure.name,
                figure.unit,
                text(figure.value),
                f"{text(figure.low)} to {text(figure.high)}",
                text(figure.target),
                text(figure.limit),
                text(figure.ratio),
                text(figure.ratio_target),
                "" if figure.met is None else "yes" if figure.met else "no",
            )
            for figure in figures
        ],
    )
