"""The figures of `atoll bench`: reads the options, measures, prints. Imports packages only when needed.

Each function raises `UsageError` when an option's value cannot be used, `CommandError` when nothing could be measured.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.text import amount, table
from atoll_cli.values import choice, count, plain

LONGEST_PHASE = 20
"""Seconds: a unit that is idle for more than 30 s counts as silent."""
Columns = Mapping[str, Callable[[Any], str]]
"""Columns of a table: a heading, and a function that formats a figure."""
RATIOS: Columns = {
    "RATIO": lambda figure: f"{figure.ratio:.3f}",
    "QUARTILES": lambda figure: f"{figure.ratio_quartiles[0]:.3f} to {figure.ratio_quartiles[1]:.3f}",
    "OF CORE TIME": lambda figure: f"{figure.ratio_of_core_time:.3f}",
}


def merge(options: argparse.Namespace) -> None:
    learners = [count("--learners", text, most=256) for text in options.learners.split(",")]
    parameters = count("--parameters", options.parameters, most=10**10)
    fragments = count("--fragments", options.fragments, most=1024)
    repeat = count("--repeat", options.repeat, most=1000)
    from atoll_bench.merge import CODECS, BenchError, all_cores, layout_of, measure

    threads = all_cores() if options.threads is None else count("--threads", options.threads, most=1024)
    choice("--codec", options.codec or CODECS[0], CODECS)
    choice("--rule", options.rule, ("RDA", "Mean"))
    try:
        layout = layout_of(parameters, fragments)
    except BenchError as error:
        raise UsageError(str(error)) from error
    found = (
        measure(layout, learner_count, codec, options.rule, threads, repeat)
        for codec in (CODECS if options.codec is None else [options.codec])
        for learner_count in learners
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
    from atoll_bench.attackers import ATTACKS
    from atoll_bench.attacks import outcomes
    from atoll_bench.parity.sizes import SIZES

    chosen = [choice("--attack", text, tuple(ATTACKS)) for text in options.attack.split(",")]
    seeds = [count("--seed", text, least=0, most=2**31 - 1) for text in options.seed.split(",")]
    size = choice("--size", options.size, tuple(SIZES))
    steps = count("--steps", options.steps, most=10**6)
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
    _print("", outcomes(chosen, seeds, size, steps), columns, options.json)


def learner(options: argparse.Namespace) -> None:
    batch = count("--batch", options.batch, most=1_048_576)
    length = count("--length", options.length, most=65_536, least=8)
    interval = count("--checkpoint-interval", options.checkpoint_interval, most=1000)
    pairs = count("--pairs", options.pairs, most=1000)
    seconds = count("--seconds", options.seconds, most=LONGEST_PHASE)
    _check_preset(options.preset)
    from atoll_bench.cores import CoresError
    from atoll_bench.learner import BenchError, Cores, Setting, measure, placements

    try:
        places = placements() if options.cores is None else [Cores.parse(options.cores)]
    except CoresError as error:
        raise UsageError(f"--cores {error}") from error
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
    setting = Setting(options.preset, batch, length, interval, pairs, seconds)
    try:
        _print("inner_steps_per_second", measure(setting, places), columns, options.json)
    except BenchError as error:
        raise CommandError(str(error)) from error


def data(options: argparse.Namespace) -> None:
    length = count("--length", options.length, most=1_000_000)
    batch = count("--batch", options.batch, most=100_000)
    step = count("--step", options.step, most=60_000)
    steps = count("--steps", options.steps, most=100_000, least=2)
    latencies = [count("--latency", text, most=10_000, least=0) for text in options.latency.split(",")]
    from atoll_bench.data import Setting, measure
    from atoll_local.errors import ClusterError, HostError
    from atoll_runtime.checkpoint import StoreError

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
    try:
        found = measure(Setting(length, batch, step / 1000, steps), [each / 1000 for each in latencies])
        _print("training_data", found, columns, options.json)
    except (ClusterError, HostError, StoreError) as error:
        raise CommandError(str(error)) from error


def restore(options: argparse.Namespace) -> None:
    parameters = count("--parameters", options.parameters, most=10**10)
    repeat = count("--repeat", options.repeat, most=100)
    from atoll_bench.merge import BenchError
    from atoll_bench.restore import measure
    from atoll_local.errors import ClusterError, HostError
    from atoll_runtime.checkpoint import StoreError

    columns: Columns = {
        "WHAT": lambda figure: figure.what,
        "BYTES": lambda figure: f"{figure.bytes_ratio:.3f} of its part",
        "SECONDS": lambda figure: f"{figure.seconds_ratio:.2f} of the copy",
    }
    try:
        _print("", measure(parameters, repeat), columns, options.json)
    except BenchError as error:
        raise UsageError(str(error)) from error
    except (ClusterError, HostError, StoreError) as error:
        raise CommandError(str(error)) from error


def operator(options: argparse.Namespace) -> None:
    repeat = count("--repeat", options.repeat, most=100)
    limit = options.scheduler_qps
    qps = None if limit is None else count("--scheduler-qps", limit, most=10_000)
    from atoll_bench.client import BenchError
    from atoll_bench.operator import measure
    from atoll_bench.verdict import CASES
    from atoll_local.errors import ClusterError, HostError

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
    try:
        _print("operator", measure(frozenset(cases), repeat, _print_progress, qps), columns, options.json)
    except (BenchError, ClusterError, HostError) as error:
        raise CommandError(str(error)) from error


def step(options: argparse.Namespace) -> None:
    _check_preset(options.preset)
    tflops = options.peak_tflops
    peak = None if tflops is None else 1e12 * plain("--peak-tflops", tflops, 0, 1e6, above=True)
    batch = count("--batch", options.batch, most=1_000_000)
    length = count("--length", options.length, most=100_000)
    pairs = count("--pairs", options.pairs, most=1000)
    seconds = plain("--seconds", options.seconds, 0, 600, above=True)
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
    found = measure(Setting(options.preset, batch, length, pairs, seconds), peak=peak)
    _print("inner_step", [found], columns, options.json)


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


def _check_preset(preset: str) -> None:
    from atoll_runtime.contract import PRESETS

    choice("--preset", preset, list(PRESETS))


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
