"""`atoll bench FIGURE`: measures this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from atoll_bench import measures
from atoll_bench.parity.sizes import SIZES
from atoll_cli.errors import CommandError, lacking
from atoll_cli.values import choice, count, plain
from atoll_runtime.contract import PRESETS

Parse = Callable[[str, str], Any]
"""Of an option's name and text. Raises `UsageError`."""
Option = tuple[str, str | None, Parse | None, str]
"""Name, default, parser, and help, to which a default is added. A flag has no parser."""
CASES = "a create, b one pod fails, c fifty fail, d idle, e fails while the operator is down, f 11,520 pods"
QPS = "requests a second of kube-scheduler; its default of 50 bounds (a) and (c), their limit included"
ATTACKS = ("none", "nan", "scale", "bits", "tokens", "replay", "slow", "sign", "noise")


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    measure: Callable[[argparse.Namespace], Iterable[Any]]
    what: str
    extras: str
    """Of pyproject.toml, that it needs."""
    options: tuple[Option, ...]
    name: str = ""
    """The value of `figure` in each JSON object; empty: there is no such key."""


def whole(most: int, least: int = 1) -> Parse:
    """A whole number."""
    return lambda option, text: count(option, text, least, most)


def each(parse: Parse) -> Parse:
    """Several, with commas between them."""
    return lambda option, text: [parse(option, part) for part in text.split(",")]


def words(*choices: str) -> Parse:
    """One of these."""
    return lambda option, text: choice(option, text, choices)


def above_0(most: float) -> Parse:
    """A number."""
    return lambda option, text: plain(option, text, 0, most, above=True)


def delay(option: str, text: str) -> float:
    """Milliseconds."""
    return plain(option, text, 0, 10_000)


def as_text(_: str, text: str) -> str:
    """Parsed by the figure."""
    return text


FIGURES = {
    "merge": Figure(
        measures.merge,
        "the syncer's merge against a copy of the same bytes",
        "runtime",
        (
            ("--learners", "4,8", each(whole(256)), ""),
            ("--parameters", "256M", whole(10**10), "at least; a merge's fixed 0.3 ms count more for fewer"),
            ("--fragments", "24", whole(1024), ""),
            ("--codec", None, words("bf16", "float32"), "bf16 or float32; default: one after the other"),
            ("--repeat", "5", whole(1000), "times the whole model"),
        ),
        name="merge_bytes_per_second",
    ),
    "learner": Figure(
        measures.learner,
        "an island's inner steps against a plain loop's; minutes",
        "operator,runtime,local",
        (
            ("--preset", "10m", words(*PRESETS), ""),
            ("--batch", "16", whole(1_048_576), "sequences of a step"),
            ("--length", "128", whole(65_536, least=8), "tokens of a sequence"),
            ("--checkpoint-interval", "50", whole(1000), "global steps"),
            ("--pairs", "10", whole(1000), "phases of each loop, in turns"),
            # A unit that is idle for more than 30 s counts as silent.
            ("--seconds", "8", whole(20), "of a phase, about"),
            (
                "--gbps",
                None,
                above_0(100),
                "of the link to the syncer, scaled like `regions`, such as 2.5; as root",
            ),
            ("--delay", "10", delay, "ms that this link adds, one way"),
        ),
        name="inner_steps_per_second",
    ),
    "link": Figure(
        measures.link,
        "bodies over TLS: on loopback, on a shaped link (as root), after a break; a minute or two",
        "operator,runtime,local",
        (
            ("--case", "loopback,shaped,break", each(words("loopback", "shaped", "break")), ""),
            ("--megabytes", "256", whole(4096), "of a body on loopback"),
            ("--repeat", "5", whole(100), "pairs"),
        ),
    ),
    "operator": Figure(
        measures.operator,
        "heals and creations on a real API server with fake nodes, against a bare client; some 7 minutes a repeat",
        "operator,runtime,local",
        (
            ("--case", "a,b,c,d,e", as_text, CASES),
            ("--repeat", "3", whole(100), "rounds"),
            ("--scheduler-qps", None, whole(10_000), QPS),
        ),
        name="operator",
    ),
    "attacks": Figure(
        measures.attacks,
        "held-out loss while one of eight learners sends wrong contributions; some twenty minutes",
        "runtime,simulate",
        (
            ("--attack", ",".join(ATTACKS), each(words(*ATTACKS)), ""),
            ("--seed", "0,1,2", each(whole(2**31 - 1, least=0)), ""),
            ("--size", "30k", words(*SIZES), "of the sizes of `parity`"),
            ("--steps", "160", whole(10**6), "of data-parallel training with the same tokens"),
        ),
    ),
    "regions": Figure(
        measures.regions,
        "synchronous training and Atoll in four regions over scaled links, as root; some 30 minutes",
        "operator,runtime,local,simulate",
        (
            ("--steps", "72", whole(100_000, least=48), "of Atoll; as many synchronous ones take minutes"),
            ("--seeds", "0,1", each(whole(2**31 - 1, least=0)), "of Atoll's runs, over equal links too"),
            ("--cut-seconds", "120", whole(3600, least=0), "without a region; 0 leaves this out"),
            ("--plot", None, as_text, "a PNG of each region's link over time"),
        ),
    ),
    "parity": Figure(
        measures.parity,
        "held-out loss against data-parallel training; up to six hours",
        "runtime,simulate",
        (
            ("--resume", None, None, "leave out what is in the results already"),
            ("--reduced", None, None, "a small table in under five minutes"),
            ("--device", None, None, "the sizes for an accelerator, a trial at a time"),
            ("--size", None, words(*SIZES), "one size alone; default: all of the plan"),
            ("--case", "a,b,c,d,e,f", each(words(*"abcdef")), ""),
            ("--out", None, as_text, "a folder; default docs/results, of --reduced /tmp/parity"),
        ),
    ),
    "journal": Figure(
        measures.journal,
        "what a merge waits for while it is written to the syncer's journal",
        "runtime",
        (
            ("--megabytes", "128", whole(10**6), "of a snapshot: Θ and momentum of a shard"),
            ("--merges", "400", whole(10**6), ""),
        ),
        name="journal_milliseconds",
    ),
    "restore": Figure(
        measures.restore,
        "what a shard and a seeded host read from a bucket, against one copy of the same bytes; a minute or two",
        "runtime,local",
        (
            ("--parameters", "64M", whole(10**10), "at least so many"),
            ("--repeat", "3", whole(100), "pairs of a restore and a copy"),
        ),
    ),
    "utilisation": Figure(
        measures.utilisation,
        "what of a unit's time and tokens counts behind a narrow link, as root; some 30 minutes",
        "operator,runtime,local,simulate",
        (
            ("--gbps", "0.05,0.2,1,5", each(above_0(100)), "of the link, scaled like those of `regions`"),
            ("--intervals", "8,32,128", each(whole(1000)), "H"),
        ),
        name="utilisation",
    ),
    "step": Figure(
        measures.step,
        "the inner step against a plain loop's",
        "runtime",
        (
            ("--preset", "1m", words(*PRESETS), ""),
            ("--batch", "16", whole(1_000_000), "sequences of a step"),
            ("--length", "128", whole(100_000), "tokens of a sequence"),
            ("--pairs", "12", whole(1000), "phases of each loop"),
            ("--seconds", "2", above_0(600), "of a phase, about"),
            ("--peak-tflops", None, above_0(1e6), "of the device, for the utilisation; such as 989"),
        ),
        name="inner_step",
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
    for name, figure in FIGURES.items():
        one = figures.add_parser(name, help=figure.what, allow_abbrev=False)
        one.add_argument("--json", action="store_true", help="a line for each JSON object")
        for option, default, parse, text in figure.options:
            if parse is None:
                one.add_argument(option, action="store_true", help=text)
                continue
            told = [text] * bool(text) + ["default %(default)s"] * (default is not None)
            one.add_argument(
                option, default=default, metavar="X", type=partial(parse, option), help="; ".join(told)
            )
    chosen = bench.parse_args(arguments)
    figure = FIGURES[chosen.figure]
    try:
        _print(figure, chosen)
    except ImportError as error:
        raise lacking(error, f"bench {chosen.figure} needs packages", figure.extras) from error
    return 0


def _print(figure: Figure, options: argparse.Namespace) -> None:
    from atoll_bench.figures import document
    from atoll_local.errors import ClusterError, HostError
    from atoll_runtime.payloads import StoreError
    from atoll_runtime.syncer.errors import JournalError, Terminal

    try:
        for found in figure.measure(options):
            told = document(figure.name, found)
            print(json.dumps(told, indent=None if options.json else 2), flush=True)
    except (ClusterError, HostError, StoreError, JournalError, Terminal) as error:
        raise CommandError(str(error)) from error
