"""The figures of `atoll bench`: measures and prints. Imports packages only when needed.

Each function gets parsed options, and raises `UsageError` when they do not fit, `CommandError` when nothing could be
measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.text import table


def merge(options: argparse.Namespace) -> None:
    from atoll_bench.merge import CODECS, all_cores, layout_of, measure

    layout = layout_of(options.parameters, options.fragments)
    found = (
        measure(layout, learners, codec, options.rule, options.threads or all_cores(), options.repeat)
        for codec in (CODECS if options.codec is None else [options.codec])
        for learners in options.learners
    )
    columns = "learners codec value copy ratio ratio_spread ratio_with_scan scan_bytes_per_second peak_bytes"
    _print("merge_bytes_per_second", found, columns, options.json)


def attacks(options: argparse.Namespace) -> None:
    from atoll_bench.attacks import outcomes

    logging.disable(logging.WARNING)  # a line for each refusal
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # models so small are slower on more cores
    found = outcomes(options.attack, options.seed, options.size, options.steps)
    _print("", found, "attack seed loss clean_loss refused false_refusals", options.json)


def learner(options: argparse.Namespace) -> None:
    from atoll_bench.learner import Setting, measure, placements

    places = placements()
    if len(places) == 1:
        _print_progress("only one core may be used: learner and syncer share it")
    columns = (
        "placement learner_cores syncer_cores plain exchange ratio ratio_quartiles ratio_of_core_time "
        "merges steps cuts bytes_in bytes_out others"
    )
    _print("inner_steps_per_second", measure(_setting(Setting, options), places), columns, options.json)


def link(options: argparse.Namespace) -> None:
    from atoll_bench.link import measure

    columns = "case streams push fetch ratio loop_lag_p99 loop_seconds_per_gib resent_share"
    with _local():
        _print("", measure(options.case, options.megabytes, options.repeat), columns, options.json)


def journal(options: argparse.Namespace) -> None:
    from atoll_bench.journal import measure
    from atoll_runtime.syncer.errors import JournalError, Terminal

    try:
        found = measure(options.megabytes, options.merges)
    except (JournalError, Terminal) as error:
        raise CommandError(f"the journal cannot be measured: {error}") from error
    columns = "megabytes begin merge merge_p99 merge_most"
    _print("journal_milliseconds", [found], columns, options.json)


def restore(options: argparse.Namespace) -> None:
    from atoll_bench.restore import measure

    with _local():
        found = measure(options.parameters, options.repeat)
        _print("", found, "what bytes_ratio seconds_ratio", options.json)


def regions(options: argparse.Namespace) -> None:
    from atoll_bench.regions.measure import measure
    from atoll_bench.regions.plot import draw

    if options.plot is not None:
        importlib.import_module("matplotlib")  # before the measurement
    _leave_nothing()
    with _local():
        found = measure(options.steps, options.seeds, options.cut_seconds, _print_progress)
    if options.plot is not None:
        draw(found, options.plot)
    print(json.dumps(found.document, indent=None if options.json else 2))


def parity(options: argparse.Namespace) -> None:
    from atoll_bench.cores import usable
    from atoll_bench.parity import cases, proof

    if options.device and options.reduced:
        raise UsageError("--device: not with --reduced, which has a size of its own")
    stages = cases.stages(options.size, reduced=options.reduced, device=options.device)
    letters = "".join(options.case)
    if not set(letters) & {letter for stage in stages for letter in stage.cases}:
        raise UsageError(f"--size {options.size!r}, --case {','.join(letters)!r}: there is no such trial")
    request = proof.Request(
        stages=stages,
        cases=letters,
        folder=Path(options.out or ("/tmp/parity" if options.reduced else "docs/results")),
        jobs=1 if options.device else len(usable()),
        resume=options.resume,
        flag="--reduced" if options.reduced else "--device" if options.device else "",
    )
    request.folder.mkdir(parents=True, exist_ok=True)
    for row in proof.prove(request, _print_progress):
        if options.json:
            print(json.dumps(row), flush=True)
    if not options.json:
        print(proof.table(request.folder).read_text(), end="")


def utilisation(options: argparse.Namespace) -> None:
    from atoll_bench.regions.utilisation import measure

    _leave_nothing()
    columns = (
        "gbps interval utilisation published simulated_utilisation merged_share simulated_merged_share "
        "codec period"
    )
    with _local():
        found = measure(options.gbps, options.intervals, _print_progress)
        _print("utilisation", found, columns, options.json)


def operator(options: argparse.Namespace) -> None:
    from atoll_bench.operator import measure
    from atoll_bench.verdict import CASES

    cases = options.case.split(",")
    if not set(cases) <= set(CASES):
        raise UsageError(f"--case {options.case!r}: of {','.join(CASES)} is wanted")

    columns = "case units pods name unit value low high target limit ratio ratio_target met"
    with _local():
        found = measure(frozenset(cases), options.repeat, _print_progress, options.scheduler_qps)
        _print("operator", found, columns, options.json)


def step(options: argparse.Namespace) -> None:
    from atoll_bench.step import Setting, measure

    columns = (
        "preset batch length device plain ours ratio ratio_quartiles ratio_of_core_time utilisation "
        "fragment_seconds sending_seconds"
    )
    tflops = options.peak_tflops
    found = measure(_setting(Setting, options), peak=None if tflops is None else 1e12 * tflops)
    _print("inner_step", [found], columns, options.json)


def _setting(kind: Any, options: argparse.Namespace) -> Any:
    """A dataclass of options of the same names."""
    return kind(*(getattr(options, each.name) for each in fields(kind)))


def _print(name: str, found: Iterable[Any], columns: str, as_json: bool) -> None:
    """Prints a JSON line for each figure as soon as it is measured, or a table of these fields at the end; an empty
    name stands in no line."""
    from atoll_bench.figures import cell, line

    figures = []
    for figure in found:
        figures.append(figure)
        if as_json:
            print(line(name, asdict(figure)), flush=True)
    if not as_json:
        shown = columns.split()
        head = [name.replace("_", " ").upper() for name in shown]
        print(table(head, [[cell(getattr(each, name)) for name in shown] for each in figures]))


@contextmanager
def _local() -> Iterator[None]:
    """Errors of the local cluster and its bucket as those of a command."""
    from atoll_local.errors import ClusterError, HostError
    from atoll_runtime.checkpoint import StoreError

    try:
        yield
    except (ClusterError, HostError, StoreError) as error:
        raise CommandError(str(error)) from error


def _leave_nothing() -> None:
    """Whatever ends this process, its context managers end what it has started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
