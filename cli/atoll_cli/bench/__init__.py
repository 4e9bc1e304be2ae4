"""`atoll bench FIGURE`: measures this machine. Each figure has a file of its own."""

from __future__ import annotations

import argparse
from typing import Protocol

from atoll_cli.bench import cluster, data, learner, merge, parity, step


class Figure(Protocol):
    """What each file has."""

    def add_options(self, parser: argparse.ArgumentParser, /) -> None: ...
    def run(self, options: argparse.Namespace, /) -> int: ...


FIGURES: dict[str, tuple[Figure, str]] = {
    "merge": (merge, "the syncer's merge against a copy of the same bytes"),
    "learner": (learner, "an island's inner steps against a plain loop's; minutes"),
    "data": (data, "whether training data keeps up with steps; a minute or two"),
    "operator": (
        cluster,
        "heals and creations on a real API server with fake nodes, against a bare client; some 7 minutes a repeat",
    ),
    "step": (step, "the inner step against a plain loop's"),
    "parity": (parity, "held-out loss against data-parallel training; up to six hours"),
}


def add_options(bench: argparse.ArgumentParser) -> None:
    """The benches and their options."""
    figures = bench.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, (figure, what) in FIGURES.items():
        figure.add_options(figures.add_parser(name, help=what, allow_abbrev=False))


def run_bench(options: argparse.Namespace) -> int:
    """Prints each figure when it is there.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the figure could not be measured.
    """
    figure, _ = FIGURES[options.figure]
    return figure.run(options)
