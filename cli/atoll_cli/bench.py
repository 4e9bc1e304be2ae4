"""`atoll bench FIGURE`: measures this machine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from atoll_cli import parity, step
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.text import amount, table

if TYPE_CHECKING:
    from atoll_bench.data import DataFigure
    from atoll_bench.learner import LearnerFigure
    from atoll_bench.merge import MergeFigure
    from atoll_bench.verdict import Figure as OperatorFigure

LONGEST_PHASE = 20
"""Seconds: the syncer takes a unit that stands still for longer than 30 s for silent."""


def add_options(bench: argparse.ArgumentParser) -> None:
    """The benches and their options."""
    figures = bench.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    merge = figures.add_parser(
        "merge", help="the syncer's merge against a copy of the same bytes", allow_abbrev=False
    )
    merge.add_argument("--json", action="store_true", help="one JSON line a figure")
    merge.add_argument("--learners", default="4,8", metavar="M,…", help="default %(default)s")
    merge.add_argument(
        "--parameters",
        default="256000000",
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
    learner = figures.add_parser(
        "learner", help="an island's inner steps against a plain loop's; minutes", allow_abbrev=False
    )
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
    data = figures.add_parser(
        "data", help="whether training data keeps up with steps; a minute or two", allow_abbrev=False
    )
    data.add_argument("--json", action="store_true", help="one JSON line a figure")
    data.add_argument("--length", default="2048", metavar="N", help="tokens; default %(default)s")
    data.add_argument("--batch", default="16", metavar="N", help="sequences of a host; default %(default)s")
    data.add_argument("--step", default="100", metavar="MS", help="of a step; default %(default)s")
    data.add_argument("--steps", default="100", metavar="N", help="default %(default)s")
    data.add_argument(
        "--latency", default="0,20,50", metavar="MS,…", help="of the bucket's answers; default %(default)s"
    )
    operator = figures.add_parser(
        "operator",
        help="heals and creations on a real API server with fake nodes, against a bare client; "
        "some 7 minutes a repeat",
        allow_abbrev=False,
    )
    operator.add_argument("--json", action="store_true", help="one JSON line a figure")
    operator.add_argument(
        "--case",
        default="a,b,c,d,e",
        metavar="C,…",
        help="a create, b one pod fails, c fifty fail, d idle, e fails while the operator is down; default all",
    )
    operator.add_argument("--repeat", default="3", metavar="N", help="rounds; default %(default)s")
    step.add_options(
        figures.add_parser("step", help="the inner step against a plain loop's", allow_abbrev=False)
    )
    parity.add_options(
        figures.add_parser(
            "parity", help="held-out loss against data-parallel training; up to six hours", allow_abbrev=False
        )
    )
    operator.add_argument(
        "--scheduler-qps",
        metavar="N",
        help="requests a second of kube-scheduler; its default of 50 bounds (a) and (c), their limit included",
    )


def run_bench(options: argparse.Namespace) -> int:
    """Prints each figure when it is there.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the figure could not be measured.
    """
    figures = {
        "merge": _merge,
        "learner": _learner,
        "operator": _operator,
        "step": step.run_step,
        "parity": parity.run_parity,
        "data": _data,
    }
    return figures[options.figure](options)


def _operator(options: argparse.Namespace) -> int:
    repeat = _count("--repeat", options.repeat, 100)
    qps = None if options.scheduler_qps is None else _count("--scheduler-qps", options.scheduler_qps, 10_000)
    try:
        from atoll_bench.client import BenchError
        from atoll_bench.figures import line
        from atoll_bench.operator import measure
        from atoll_bench.verdict import CASES
        from atoll_local.errors import ClusterError, HostError
    except ImportError as error:
        raise UsageError(
            f"bench operator needs the packages of the operator and of the local cluster, "
            f"pip install 'atoll[operator,runtime,local]': {error}"
        ) from error
    cases = options.case.split(",")
    if not set(cases) <= set(CASES):
        raise UsageError(f"--case {options.case!r}: of {','.join(CASES)} is wanted")
    try:
        found = measure(frozenset(cases), repeat, lambda text: print(text, file=sys.stderr, flush=True), qps)
    except (BenchError, ClusterError, HostError) as error:
        raise CommandError(str(error)) from error
    if options.json:
        for figure in found:
            print(line("operator", asdict(figure)), flush=True)
    else:
        print(_operator_table(found))
    return 0


def _operator_table(figures: list[OperatorFigure]) -> str:
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


def _learner(options: argparse.Namespace) -> int:
    from atoll_runtime.contract import PRESETS

    batch = _count("--batch", options.batch, 1_048_576)
    length = _count("--length", options.length, 65_536, least=8)
    interval = _count("--checkpoint-interval", options.checkpoint_interval, 1000)
    pairs = _count("--pairs", options.pairs, 1000)
    seconds = _count("--seconds", options.seconds, LONGEST_PHASE)
    if options.preset not in PRESETS:
        raise UsageError(f"--preset {options.preset!r}: one of {', '.join(PRESETS)} is wanted")
    try:
        from atoll_bench.cores import CoresError
        from atoll_bench.figures import line
        from atoll_bench.learner import BenchError, Cores, Setting, measure, placements
    except ImportError as error:
        raise UsageError(
            f"bench needs the packages of both ends, pip install 'atoll[operator,runtime]': {error}"
        ) from error
    try:
        places = placements() if options.cores is None else [Cores.parse(options.cores)]
    except CoresError as error:
        raise UsageError(f"--cores {error}") from error
    if options.cores is None and len(places) == 1:
        print("one core alone may be used: learner and syncer share it", file=sys.stderr)
    found = []
    try:
        for figure in measure(Setting(options.preset, batch, length, interval, pairs, seconds), places):
            found.append(figure)
            if options.json:
                print(line("inner_steps_per_second", asdict(figure)), flush=True)
    except BenchError as error:
        raise CommandError(str(error)) from error
    if not options.json:
        print(_learner_table(found))
    return 0


def _learner_table(figures: list[LearnerFigure]) -> str:
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


def _data(options: argparse.Namespace) -> int:
    length = _count("--length", options.length, 1_000_000)
    batch = _count("--batch", options.batch, 100_000)
    step = _count("--step", options.step, 60_000)
    steps = _count("--steps", options.steps, 100_000, least=2)
    latencies = [_count("--latency", text, 10_000, least=0) for text in options.latency.split(",")]
    try:
        from atoll_bench.data import Setting, measure
        from atoll_bench.figures import line
        from atoll_local.errors import ClusterError, HostError
        from atoll_runtime.checkpoint import StoreError
    except ImportError as error:
        raise UsageError(
            f"bench data needs the packages of runtime and local cluster, pip install 'atoll[runtime,local]': {error}"
        ) from error
    found = []
    try:
        for figure in measure(
            Setting(length, batch, step / 1000, steps), [each / 1000 for each in latencies]
        ):
            found.append(figure)
            if options.json:
                print(line("training_data", asdict(figure)), flush=True)
    except (ClusterError, HostError, StoreError) as error:
        raise CommandError(str(error)) from error
    if not options.json:
        print(_data_table(found))
    return 0


def _data_table(figures: list[DataFigure]) -> str:
    head = ("STORE", "LATENCY", "THREADS", "EXAMPLES/S", "FIRST", "WAIT P50", "WAIT P99", "STALLED")
    return table(
        head,
        [
            (
                figure.store,
                f"{1000 * figure.latency:.0f} ms",
                str(figure.readers),
                f"{figure.examples_per_second:.0f}",
                f"{1000 * figure.first:.0f} ms",
                f"{1000 * figure.wait_p50:.2f} ms",
                f"{1000 * figure.wait_p99:.2f} ms",
                f"{100 * figure.stalled:.0f} % of {figure.steps} steps",
            )
            for figure in figures
        ],
    )


def _merge(options: argparse.Namespace) -> int:
    learners = [_count("--learners", text, 256) for text in options.learners.split(",")]
    parameters = _count("--parameters", options.parameters, 10**10)
    fragments = _count("--fragments", options.fragments, 1024)
    repeat = _count("--repeat", options.repeat, 1000)

    try:
        from atoll_bench.figures import line
        from atoll_bench.merge import CODECS, BenchError, all_cores, layout_of, measure
    except ImportError as error:
        raise UsageError(
            f"bench needs the runtime's packages, pip install 'atoll[runtime]': {error}"
        ) from error

    threads = all_cores() if options.threads is None else _count("--threads", options.threads, 1024)
    try:
        layout = layout_of(parameters, fragments)
    except BenchError as error:
        raise UsageError(str(error)) from error
    found = []
    for codec in CODECS if options.codec is None else [options.codec]:
        for count in learners:
            figure = measure(layout, count, codec, options.rule, threads, repeat)
            found.append(figure)
            if options.json:
                print(line("merge_bytes_per_second", asdict(figure)), flush=True)
    if not options.json:
        print(_merge_table(found))
    return 0


def _merge_table(figures: list[MergeFigure]) -> str:
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


def _count(option: str, text: str, most: int, least: int = 1) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UsageError(f"{option} {text!r}: a whole number from {least} to {most} is wanted")
    return value
