"""`atoll bench FIGURE`: measures this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from atoll_bench.parity.sizes import SIZES
from atoll_cli.arguments import JSON, Option, Parser, add, as_text, choice, count, number, several
from atoll_cli.errors import CommandError, lacking
from atoll_runtime.contract import PRESETS

CASES = "a create, b one pod fails, c fifty fail, d idle, e fails while the operator is down, f 11,520 pods"
QPS = "requests a second of kube-scheduler; its default of 50 bounds (a) and (c), their limit included"
ATTACKS = ("none", "nan", "scale", "bits", "tokens", "replay", "slow", "sign", "noise")
SEED = count(0, 2**31 - 1)


@dataclass(frozen=True)
class Figure:
    module: str
    """Its `measure` takes the options by name, and yields a dataclass or a dictionary for each line of JSON. It raises
    `UsageError` if the options do not fit together, and `CommandError` if nothing could be measured."""
    what: str
    extras: str
    """The extras of pyproject.toml that it needs."""
    options: tuple[Option, ...]
    name: str = ""
    """The value of `figure` in each JSON object. If empty, there is no such key."""


FIGURES = {
    "merge": Figure(
        "merge",
        "the syncer's merge against a copy of the same bytes",
        "runtime",
        (
            Option("--learners", "LIST", several(count(1, 256)), "numbers of learners", "4,8"),
            Option("--parameters", "N", count(1, 10**10),
                   "at least; a merge's fixed 0.3 ms count more for fewer", "256M"),
            Option("--fragments", "P", count(1, 1024), "fragments", "24"),
            Option("--codec", "CODEC", choice("bf16", "float32"), "bf16 or float32; default: one after the other"),
            Option("--repeat", "N", count(1, 1000), "times the whole model", "5"),
        ),
        name="merge_bytes_per_second",
    ),
    "learner": Figure(
        "learner",
        "an island's inner steps against a plain loop's; minutes",
        "operator,runtime,local",
        (
            Option("--preset", "NAME", choice(*PRESETS), "size of the model", "10m"),
            Option("--batch", "N", count(1, 1_048_576), "sequences of a step", "16"),
            Option("--length", "T", count(8, 65_536), "tokens of a sequence", "128"),
            Option("--checkpoint-interval", "N", count(1, 1000), "global steps", "50"),
            Option("--pairs", "N", count(1, 1000), "phases of each loop, in turns", "10"),
            # A unit that is idle for more than 30 s counts as silent.
            Option("--seconds", "S", count(1, 20), "of a phase, about", "8"),
        ),
        name="inner_steps_per_second",
    ),
    "link": Figure(
        "link",
        "bodies over TLS: on loopback, on a shaped link (as root), after a break; a minute or two",
        "operator,runtime,local",
        (
            Option("--case", "LIST", several(choice("loopback", "shaped", "break")), "of these",
                   "loopback,shaped,break"),
            Option("--megabytes", "N", count(1, 4096), "of a body on loopback", "256"),
            Option("--repeat", "N", count(1, 100), "pairs", "5"),
        ),
    ),
    "operator": Figure(
        "operator",
        "heals and creations on a real API server with fake nodes, against a bare client; some 7 minutes a repeat",
        "operator,runtime,local",
        (
            Option("--case", "LIST", several(choice(*"abcdef")), CASES, "a,b,c,d,e"),
            Option("--repeat", "N", count(1, 100), "rounds", "3"),
            Option("--scheduler-qps", "N", count(1, 10_000), QPS),
        ),
        name="operator",
    ),
    "attacks": Figure(
        "attacks",
        "held-out loss while one of eight learners sends wrong contributions; some twenty minutes",
        "runtime,simulate",
        (
            Option("--attack", "LIST", several(choice(*ATTACKS)), "of these", ",".join(ATTACKS)),
            Option("--seed", "LIST", several(SEED), "of the runs", "0,1,2"),
            Option("--size", "SIZE", choice(*SIZES), "of the sizes of `parity`", "30k"),
            Option("--steps", "N", count(1, 10**6), "of data-parallel training with the same tokens", "160"),
        ),
    ),
    "regions": Figure(
        "regions.measure",
        "synchronous training and Atoll in four regions over scaled links, as root; some 30 minutes",
        "operator,runtime,local",
        (
            Option("--steps", "N", count(48, 100_000), "of Atoll; as many synchronous ones take minutes", "72"),
            Option("--seeds", "LIST", several(SEED), "of Atoll's runs, over equal links too", "0,1"),
        ),
    ),
    "parity": Figure(
        "parity.proof",
        "held-out loss against data-parallel training; up to six hours",
        "runtime,simulate",
        (
            Option("--resume", "", None, "leave out what is in the results already"),
            Option("--reduced", "", None, "a small table in under five minutes"),
            Option("--device", "", None, "the sizes for an accelerator, a trial at a time"),
            Option("--size", "SIZE", choice(*SIZES), "one size alone; default: all of the plan"),
            Option("--case", "LIST", several(choice(*"abcdef")), "of the cases", "a,b,c,d,e,f"),
            Option("--out", "FOLDER", as_text, "default docs/results, of --reduced /tmp/parity"),
        ),
    ),
    "journal": Figure(
        "journal",
        "what a merge waits for while it is written to the syncer's journal",
        "runtime",
        (
            Option("--megabytes", "N", count(1, 10**6), "of a snapshot: Θ and momentum of a shard", "128"),
            Option("--merges", "N", count(1, 10**6), "that are written", "400"),
        ),
        name="journal_milliseconds",
    ),
    "restore": Figure(
        "restore",
        "what a shard and a seeded host read from a bucket, against one copy of the same bytes; a minute or two",
        "runtime,local",
        (
            Option("--parameters", "N", count(1, 10**10), "at least so many", "64M"),
            Option("--hosts", "N", count(1, 512), "of the unit that the seeded host belongs to", "4"),
            Option("--repeat", "N", count(1, 100), "pairs of a restore and a copy", "9"),
        ),
    ),
    "utilisation": Figure(
        "regions.utilisation",
        "what of a unit's time and tokens counts behind a narrow link, as root; some 30 minutes",
        "operator,runtime,local,simulate",
        (
            Option("--gbps", "LIST", several(number(0.01, 100)), "of the link, scaled like those of `regions`",
                   "0.05,0.2,1,5"),
            Option("--intervals", "LIST", several(count(2, 1000)), "H", "8,32,128"),
        ),
        name="utilisation",
    ),
    "step": Figure(
        "step",
        "the inner step against a plain loop's",
        "runtime",
        (
            Option("--preset", "NAME", choice(*PRESETS), "size of the model", "1m"),
            Option("--batch", "N", count(1, 1_000_000), "sequences of a step", "16"),
            Option("--length", "T", count(1, 100_000), "tokens of a sequence", "128"),
            Option("--pairs", "N", count(1, 1000), "phases of each loop", "12"),
            Option("--seconds", "S", number(0, 600, above=True), "of a phase, about", "2"),
            Option("--peak-tflops", "X", number(0, 1e6, above=True),
                   "of the device, for the utilisation; such as 989"),
        ),
        name="inner_step",
    ),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Prints each figure as soon as it is measured. Raises `UsageError` if an option's value cannot be used, or
    packages are missing, and `CommandError`, `ClusterError`, `HostError` or `StoreError` if the figure could not
    be measured."""
    bench = Parser(prog="atoll bench", description="Measure this machine.")
    figures = bench.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, figure in FIGURES.items():
        add(figures.add_parser(name, help=figure.what), (*figure.options, JSON))
    chosen = vars(bench.parse_args(arguments))
    figure, as_line = FIGURES[name := chosen.pop("figure")], chosen.pop("json")
    try:
        from atoll_bench.figures import document

        for found in import_module(f"atoll_bench.{figure.module}").measure(**chosen):
            print(json.dumps(document(figure.name, found), indent=None if as_line else 2), flush=True)
    except ImportError as error:
        raise lacking(error, f"bench {name}", figure.extras) from error
    except MemoryError as error:
        raise CommandError(f"bench {name}: not enough memory: {error}") from error
    return 0
