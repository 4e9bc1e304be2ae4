"""`atoll bench step`: an island's inner step against a plain loop's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from atoll_cli.bench.telling import tell
from atoll_cli.errors import UsageError, lacking
from atoll_cli.text import table
from atoll_cli.values import count, plain

if TYPE_CHECKING:
    from atoll_bench.step import StepFigure


def add_options(step: argparse.ArgumentParser) -> None:
    """The options of the bench."""
    step.add_argument("--json", action="store_true", help="one JSON line")
    step.add_argument("--preset", default="1m", metavar="NAME", help="default %(default)s")
    step.add_argument("--batch", default="16", metavar="N", help="sequences of a step; default %(default)s")
    step.add_argument(
        "--length", default="128", metavar="N", help="tokens of a sequence; default %(default)s"
    )
    step.add_argument("--pairs", default="12", metavar="N", help="phases of each loop; default %(default)s")
    step.add_argument("--seconds", default="2", metavar="N", help="of a phase, about; default %(default)s")
    step.add_argument("--peak-tflops", metavar="N", help="of the device, for the utilisation; such as 989")


def run(options: argparse.Namespace) -> int:
    """Raises `UsageError`: an option's value cannot be used."""
    from atoll_runtime.contract import PRESETS

    if options.preset not in PRESETS:
        raise UsageError(f"--preset {options.preset!r}: one of {', '.join(PRESETS)} is wanted")
    peak = (
        None
        if options.peak_tflops is None
        else 1e12 * plain("--peak-tflops", options.peak_tflops, 0, 1e6, above=True)
    )
    batch = count("--batch", options.batch, most=1_000_000)
    length = count("--length", options.length, most=100_000)
    pairs = count("--pairs", options.pairs, most=1000)
    seconds = plain("--seconds", options.seconds, 0, 600, above=True)
    try:
        from atoll_bench.step import Setting, measure
    except ImportError as error:
        raise lacking(error, "bench step needs the runtime's packages", "runtime") from error
    found = measure(Setting(options.preset, batch, length, pairs, seconds), peak=peak)
    tell("inner_step", [found], _table, as_json=options.json)
    return 0


def _table(figures: list[StepFigure]) -> str:
    head = (
        "PRESET",
        "BATCH",
        "DEVICE",
        "PLAIN",
        "OURS",
        "RATIO",
        "QUARTILES",
        "OF CORE TIME",
        "UTILISATION",
        "FRAGMENT",
        "SENDING",
    )
    return table(
        head,
        [
            (
                figure.preset,
                f"{figure.batch} x {figure.length}",
                figure.device,
                f"{figure.plain:.2f}/s",
                f"{figure.ours:.2f}/s",
                f"{figure.ratio:.3f}",
                f"{figure.ratio_quartiles[0]:.3f} to {figure.ratio_quartiles[1]:.3f}",
                f"{figure.ratio_of_core_time:.3f}",
                "" if figure.utilisation is None else f"{figure.utilisation:.1%}",
                f"{1e3 * figure.fragment_seconds:.2f} ms",
                f"{1e3 * figure.sending_seconds:.2f} ms",
            )
            for figure in figures
        ],
    )
