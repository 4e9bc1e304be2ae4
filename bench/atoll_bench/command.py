"""`atoll bench FIGURE`: measures this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from atoll_bench import measures
from atoll_bench.parity import command as parity
from atoll_cli.errors import lacking

BATCH = ("--batch", "16", "sequences of a step; default %(default)s")
ATTACKS = "none,nan,scale,bits,tokens,replay,slow,sign,noise"
LENGTH = ("--length", "128", "tokens of a sequence; default %(default)s")
Figure = tuple[Callable[[argparse.Namespace], None], str, str, Sequence[tuple[str, str | None, str]]]
"""The function, a description, the extras of pyproject.toml that it needs, and options with default and help."""
FIGURES: dict[str, Figure] = {
    "merge": (
        measures.merge,
        "the syncer's merge against a copy of the same bytes",
        "runtime",
        (
            ("--learners", "4,8", "default %(default)s"),
            (
                "--parameters",
                "256M",
                "at least so many; default %(default)s; a merge's fixed 0.3 ms count the more, the fewer",
            ),
            ("--fragments", "24", "default %(default)s"),
            ("--codec", None, "bf16 or float32; default: one after the other"),
            ("--rule", "RDA", "RDA or Mean; default %(default)s"),
            ("--repeat", "5", "times the whole model; default %(default)s"),
            ("--threads", None, "default: all cores"),
        ),
    ),
    "learner": (
        measures.learner,
        "an island's inner steps against a plain loop's; minutes",
        "operator,runtime",
        (
            ("--preset", "10m", "default %(default)s"),
            BATCH,
            LENGTH,
            ("--checkpoint-interval", "50", "global steps; default %(default)s"),
            ("--pairs", "10", "phases of each loop, in turns; default %(default)s"),
            ("--seconds", "8", "of a phase, about; default %(default)s"),
            ("--cores", None, "LEARNER/SYNCER such as 0-2/3; default: a core each, then one core for both"),
        ),
    ),
    "data": (
        measures.data,
        "whether training data keeps up with steps; a minute or two",
        "runtime,local",
        (
            ("--length", "2048", "tokens; default %(default)s"),
            ("--batch", "16", "sequences of a host; default %(default)s"),
            ("--step", "100", "milliseconds of a step; default %(default)s"),
            ("--steps", "100", "default %(default)s"),
            ("--latency", "0,20,50", "milliseconds of the bucket's answers; default %(default)s"),
        ),
    ),
    "operator": (
        measures.operator,
        "heals and creations on a real API server with fake nodes, against a bare client; some 7 minutes a repeat",
        "operator,runtime,local",
        (
            (
                "--case",
                "a,b,c,d,e",
                "a create, b one pod fails, c fifty fail, d idle, e fails while the operator is down; default all",
            ),
            ("--repeat", "3", "rounds; default %(default)s"),
            (
                "--scheduler-qps",
                None,
                "requests a second of kube-scheduler; its default of 50 bounds (a) and (c), their limit included",
            ),
        ),
    ),
    "attacks": (
        measures.attacks,
        "held-out loss while one of eight learners sends wrong contributions; some twenty minutes",
        "runtime,simulate",
        (
            ("--attack", ATTACKS, "default %(default)s"),
            ("--seed", "0,1,2", "default %(default)s"),
            ("--size", "30k", "of the sizes of `parity`; default %(default)s"),
            ("--steps", "160", "of data-parallel training with the same tokens; default %(default)s"),
        ),
    ),
    "restore": (
        measures.restore,
        "what a shard and a seeded host read from a bucket, against one copy of the same bytes; a minute or two",
        "runtime,local",
        (
            ("--parameters", "64M", "at least so many; default %(default)s"),
            ("--repeat", "3", "pairs of a restore and a copy; default %(default)s"),
        ),
    ),
    "step": (
        measures.step,
        "the inner step against a plain loop's",
        "runtime",
        (
            ("--preset", "1m", "default %(default)s"),
            BATCH,
            LENGTH,
            ("--pairs", "12", "phases of each loop; default %(default)s"),
            ("--seconds", "2", "of a phase, about; default %(default)s"),
            ("--peak-tflops", None, "of the device, for the utilisation; such as 989"),
        ),
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Prints each figure as soon as it is measured.

    Raises:
        UsageError: an option's value cannot be used, or packages are missing.
        CommandError: the figure could not be measured.
    """
    bench = argparse.ArgumentParser(
        prog="atoll bench", description="Measure this machine.", allow_abbrev=False
    )
    figures = bench.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, (_, what, _, options) in FIGURES.items():
        one = figures.add_parser(name, help=what, allow_abbrev=False)
        one.add_argument("--json", action="store_true", help="one JSON line a figure")
        for option, default, text in options:
            one.add_argument(option, default=default, metavar="X", help=text)
    what = "held-out loss against data-parallel training; up to six hours"
    parity.add_options(figures.add_parser("parity", help=what, allow_abbrev=False))
    chosen = bench.parse_args(arguments)
    run, _, extras, _ = FIGURES.get(chosen.figure, (parity.run, "", "runtime,simulate", ()))
    try:
        run(chosen)
    except ImportError as error:
        raise lacking(error, f"bench {chosen.figure} needs packages", extras) from error
    return 0
