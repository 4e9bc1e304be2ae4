"""The figures of `atoll bench`: measures and prints. Imports packages only when needed.

Each function gets parsed options, and raises `UsageError` when they do not fit, `CommandError` when nothing could be
measured.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.text import amount, table

Columns = Mapping[str, Callable[[Any], str]]
"""Columns of a table: a heading, and a function that formats a figure."""
RATIOS: Columns = {
    "RATIO": lambda figure: f"{figure.ratio:.3f}",
    "QUARTILES": lambda figure: f"{figure.ratio_quartiles[0]:.3f} to {figure.ratio_quartiles[1]:.3f}",
    "OF CORE TIME": lambda figure: f"{figure.ratio_of_core_time:.3f}",
}


def merge(options: argparse.Namespace) -> None:
    from atoll_bench.merge import CODECS, all_cores, layout_of, measure

    layout = layout_of(options.parameters, options.fragments)
    found = (
        measure(layout, learners, codec, options.rule, options.threads or all_cores(), options.repeat)
        for codec in (CODECS if options.codec is None else [options.codec])
        for learners in options.learners
    )
    columns: Columns = {
        "LEARNERS": lambda figure: str(figure.learners),
        "CODEC": lambda figure: figure.codec,
        "MERGE": lambda figure: amount(figure.value, "B/s"),
        "COPY": lambda figure: amount(figure.copy, "B/s"),
        "RATIO": lambda figure: f"{figure.ratio:.2f}",
        "QUARTILES": lambda figure: f"{figure.ratio_spread[0]:.2f} to {figure.ratio_spread[1]:.2f}",
        "WITH SCAN": lambda figure: f"{figure.ratio_with_scan:.2f}",
        "SCAN (1 THREAD)": lambda figure: amount(figure.scan_bytes_per_second, "B/s"),
        "PEAK": lambda figure: amount(figure.peak_bytes, "B"),
    }
    _print("merge_bytes_per_second", found, columns, options.json)


def attacks(options: argparse.Namespace) -> None:
    from atoll_bench.attacks import outcomes

    columns: Columns = {
        "ATTACK": lambda outcome: outcome.attack,
        "SEED": lambda outcome: str(outcome.seed),
        "LOSS": lambda outcome: "none" if outcome.loss is None else f"{outcome.loss:.4f}",
        "CLEAN": lambda outcome: "none" if outcome.clean_loss is None else f"{outcome.clean_loss:.4f}",
        "REFUSED": lambda outcome: str(outcome.refused),
        "FALSE REFUSALS": lambda outcome: str(outcome.false_refusals),
    }
    logging.disable(logging.WARNING)  # a line for each refusal
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # models so small are slower on more cores
    found = outcomes(options.attack, options.seed, options.size, options.steps)
    _print("", found, columns, options.json)


def learner(options: argparse.Namespace) -> None:
    from atoll_bench.learner import Cores, Setting, measure, placements

    places = placements() if options.cores is None else [Cores.parse(options.cores)]
    if options.cores is None and len(places) == 1:
        _print_progress("only one core may be used: learner and syncer share it")
    columns: Columns = {
        "PLACEMENT": lambda figure: figure.placement,
        "CORES": lambda figure: "/".join(
            ",".join(map(str, cores)) for cores in (figure.learner_cores, figure.syncer_cores)
        ),
        "PLAIN": lambda figure: f"{figure.plain:.2f}/s",
        "EXCHANGE": lambda figure: f"{figure.exchange:.2f}/s",
        **RATIOS,
        "MERGES": lambda figure: f"{figure.merges} in {figure.steps} steps",
        "CUTS": lambda figure: str(figure.cuts),
        "IN": lambda figure: amount(figure.bytes_in, "B"),
        "OUT": lambda figure: amount(figure.bytes_out, "B"),
        "OTHERS": lambda figure: f"{figure.others:.1f} cores",
    }
    _print("inner_steps_per_second", measure(_setting(Setting, options), places), columns, options.json)


def data(options: argparse.Namespace) -> None:
    from atoll_bench.data import Setting, measure

    columns: Columns = {
        "STORE": lambda figure: figure.store,
        "LATENCY": lambda figure: f"{1000 * figure.latency:.0f} ms",
        "THREADS": lambda figure: str(figure.readers),
        "EXAMPLES/S": lambda figure: f"{figure.examples_per_second:.0f}",
        "FIRST": lambda figure: f"{1000 * figure.first:.0f} ms",
        "WAIT P50": lambda figure: f"{1000 * figure.wait_p50:.2f} ms",
        "WAIT P99": lambda figure: f"{1000 * figure.wait_p99:.2f} ms",
        "STALLED": lambda figure: f"{100 * figure.stalled:.0f} % of {figure.steps} steps",
    }
    setting = Setting(options.length, options.batch, options.step / 1000, options.steps)
    with _local():
        found = measure(setting, [each / 1000 for each in options.latency])
        _print("training_data", found, columns, options.json)


def restore(options: argparse.Namespace) -> None:
    from atoll_bench.restore import measure

    columns: Columns = {
        "WHAT": lambda figure: figure.what,
        "BYTES": lambda figure: f"{figure.bytes_ratio:.3f} of its part",
        "SECONDS": lambda figure: f"{figure.seconds_ratio:.2f} of the copy",
    }
    with _local():
        _print("", measure(options.parameters, options.repeat), columns, options.json)


def regions(options: argparse.Namespace) -> None:
    from atoll_bench.figures import line
    from atoll_bench.regions.measure import measure
    from atoll_bench.regions.plot import draw

    if options.plot is not None:
        importlib.import_module("matplotlib")  # before the measurement
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that no namespace is left
        signal.signal(number, signal.default_int_handler)
    with _local():
        found = measure(options.steps, options.seeds, options.cut_seconds, _print_progress)
    if options.plot is not None:
        draw(found, options.plot)
    told = found.document
    if options.json:
        print(line("", told))
        return
    columns: Columns = {
        "REGION": lambda row: row["name"],
        "LINK": lambda row: f"{row['gbps']:g} Gbit/s",
        "SYNCHRONOUS": lambda row: f"{row['used_gbps_synchronous']:.2f}",
        "ATOLL": lambda row: f"{row['used_gbps']:.2f}",
        "ROUNDS": lambda row: f"{row['member_share']:.1%}",
    }
    print(table(tuple(columns), [tuple(text(row) for text in columns.values()) for row in told["regions"]]))
    print(
        f"{told['steps']} steps: synchronous {told['synchronous_s']:.1f} s, loss {told['loss_synchronous']:.3f}; "
        f"Atoll {told['atoll_s']:.1f} s, loss {told['loss_atoll']:.3f}; ratio {told['ratio']:.1f}"
    )
    if cut := told.get("cut"):
        after = "never" if cut["merged_again_s"] is None else f"after {cut['merged_again_s']:.1f} s"
        print(
            f"{cut['region']} cut off for {cut['seconds']:.0f} of {cut['run_s']:.0f} s: merged again {after}; "
            f"loss {cut['loss']:.3f}, without the cut {cut['loss_without_cut']:.3f}"
        )


def operator(options: argparse.Namespace) -> None:
    from atoll_bench.operator import measure
    from atoll_bench.verdict import CASES

    cases = options.case.split(",")
    if not set(cases) <= set(CASES):
        raise UsageError(f"--case {options.case!r}: of {','.join(CASES)} is wanted")

    def text(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    columns: Columns = {
        "CASE": lambda figure: figure.case,
        "PODS": lambda figure: f"{figure.units} x {figure.pods // figure.units}",
        "FIGURE": lambda figure: figure.name,
        "UNIT": lambda figure: figure.unit,
        "MEDIAN": lambda figure: text(figure.value),
        "SPREAD": lambda figure: f"{text(figure.low)} to {text(figure.high)}",
        "TARGET": lambda figure: text(figure.target),
        "LIMIT": lambda figure: text(figure.limit),
        "RATIO": lambda figure: text(figure.ratio),
        "RATIO TARGET": lambda figure: text(figure.ratio_target),
        "MET": lambda figure: "" if figure.met is None else "yes" if figure.met else "no",
    }
    with _local():
        found = measure(frozenset(cases), options.repeat, _print_progress, options.scheduler_qps)
        _print("operator", found, columns, options.json)


def step(options: argparse.Namespace) -> None:
    from atoll_bench.step import Setting, measure

    columns: Columns = {
        "PRESET": lambda figure: figure.preset,
        "BATCH": lambda figure: f"{figure.batch} x {figure.length}",
        "DEVICE": lambda figure: figure.device,
        "PLAIN": lambda figure: f"{figure.plain:.2f}/s",
        "OURS": lambda figure: f"{figure.ours:.2f}/s",
        **RATIOS,
        "UTILISATION": lambda figure: "" if figure.utilisation is None else f"{figure.utilisation:.1%}",
        "FRAGMENT": lambda figure: f"{1e3 * figure.fragment_seconds:.2f} ms",
        "SENDING": lambda figure: f"{1e3 * figure.sending_seconds:.2f} ms",
    }
    tflops = options.peak_tflops
    found = measure(_setting(Setting, options), peak=None if tflops is None else 1e12 * tflops)
    _print("inner_step", [found], columns, options.json)


def _setting(kind: Any, options: argparse.Namespace) -> Any:
    """A dataclass of options of the same names."""
    return kind(*(getattr(options, each.name) for each in fields(kind)))


def _print(name: str, found: Iterable[Any], columns: Columns, as_json: bool) -> None:
    """Prints a JSON line for each figure as soon as it is measured, or a table at the end; an empty name stands in no
    line."""
    from atoll_bench.figures import line

    figures = []
    for figure in found:
        figures.append(figure)
        if as_json:
            print(line(name, asdict(figure)), flush=True)
    if not as_json:
        print(table(tuple(columns), [tuple(text(each) for text in columns.values()) for each in figures]))


@contextmanager
def _local() -> Iterator[None]:
    """Errors of the local cluster and its bucket as those of a command."""
    from atoll_local.errors import ClusterError, HostError
    from atoll_runtime.checkpoint import StoreError

    try:
        yield
    except (ClusterError, HostError, StoreError) as error:
        raise CommandError(str(error)) from error


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
