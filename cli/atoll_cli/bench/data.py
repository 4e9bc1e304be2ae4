"""`atoll bench data`: whether training data keeps up with steps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from atoll_cli.bench.telling import tell
from atoll_cli.errors import CommandError, lacking
from atoll_cli.text import table
from atoll_cli.values import count

if TYPE_CHECKING:
    from atoll_bench.data import DataFigure


def add_options(data: argparse.ArgumentParser) -> None:
    """The options of the bench."""
    data.add_argument("--json", action="store_true", help="one JSON line a figure")
    data.add_argument("--length", default="2048", metavar="N", help="tokens; default %(default)s")
    data.add_argument("--batch", default="16", metavar="N", help="sequences of a host; default %(default)s")
    data.add_argument("--step", default="100", metavar="MS", help="of a step; default %(default)s")
    data.add_argument("--steps", default="100", metavar="N", help="default %(default)s")
    data.add_argument(
        "--latency", default="0,20,50", metavar="MS,…", help="of the bucket's answers; default %(default)s"
    )


def run(options: argparse.Namespace) -> int:
    """Raises `UsageError`: an option's value cannot be used; `CommandError`: nothing could be measured."""
    length = count("--length", options.length, most=1_000_000)
    batch = count("--batch", options.batch, most=100_000)
    step = count("--step", options.step, most=60_000)
    steps = count("--steps", options.steps, most=100_000, least=2)
    latencies = [count("--latency", text, most=10_000, least=0) for text in options.latency.split(",")]
    try:
        from atoll_bench.data import Setting, measure
        from atoll_local.errors import ClusterError, HostError
        from atoll_runtime.checkpoint import StoreError
    except ImportError as error:
        raise lacking(
            error, "bench data needs the packages of runtime and local cluster", "runtime,local"
        ) from error
    setting = Setting(length, batch, step / 1000, steps)
    try:
        found = measure(setting, [each / 1000 for each in latencies])
        tell("training_data", found, _table, as_json=options.json)
    except (ClusterError, HostError, StoreError) as error:
        raise CommandError(str(error)) from error
    return 0


def _table(figures: list[DataFigure]) -> str:
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
