"""`atoll try`: runs the trial, returns its exit status, and leaves no process behind."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll_cli.demo.console import Console
from atoll_cli.demo.evaluation import evaluate_both
from atoll_cli.demo.healing import Healing
from atoll_cli.demo.verdict import judge, render
from atoll_cli.demo.watch import Watch, all_learning
from atoll_cli.errors import CommandError, UsageError, command_errors
from atoll_cli.simulate.runfile import checked_spec, read_manifest
from atoll_cli.trial.operator import Operator
from atoll_cli.views import PodView, Sample, ledgers_of, sample_of
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.limits import sizes
from atoll_operator.plan.pods.topology import slice_of
from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.data import Reader, write_stdlib

BUILT_IN = Path(__file__).with_name("run.yaml")
FOLDER = "/FOLDER/"
"""Stands for the folder of this trial in the built-in run."""
STAGES = 4
INTERVAL = 0.5
"""Seconds between two looks."""
SILENCE = 300.0
"""Longest time in seconds without a change while something is awaited. What takes longer is broken, not slow."""
FAILURES = 2
"""Restarts of a unit, before the trial kills one, at which the trial gives up."""
MOST_PROCESSES = 16
MARGIN = 1e-3
"""Nats per token by which the trained model must beat the untrained one. A user's own run may be short."""


def run_try(options: argparse.Namespace) -> int:
    """Return exit status 0 if everything was shown, else 1. Raises `CommandError`: a stage did not finish;
    `UsageError`: wrong options, or a run that this machine cannot show."""
    console = Console(STAGES, sys.stderr if options.json else None)
    folder = _folder(options.folder)
    passed = False
    # Signals of a terminal reach only us: the processes have their own sessions. A shell's background job starts with
    # SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        name, spec = _read(options.file, folder, options.steps)
        with command_errors():
            summary = _show(name, spec, folder, console, built_in=options.file is None)
        passed = summary["passed"]
        if options.json:
            print(json.dumps(summary, indent=2))
        else:
            console.say(render(summary), indent="")
    except CommandError as error:
        if options.json and not isinstance(error, UsageError):
            told = {"passed": False, "failures": [str(error)], "timings": console.timings}
            print(json.dumps(told, indent=2))
        raise
    finally:
        if passed and options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif any(folder.iterdir()):
            print(f"logs, data and checkpoints are kept in {folder}", file=sys.stderr)
        else:
            folder.rmdir()
    return 0 if passed else 1


def _folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="atoll-try-"))
    try:
        wanted.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"--folder {wanted}: a folder that does not exist is wanted: {error.strerror}"
        ) from error
    return wanted.absolute()


def _read(file: Path | None, folder: Path, steps: int | None) -> tuple[str, TrainingRunSpec]:
    """Name and spec of the run. Raises `UsageError`."""
    path = file or folder / BUILT_IN.name
    if file is None:
        path.write_text(BUILT_IN.read_text().replace(FOLDER, f"{folder}/"))
    manifest = read_manifest(path)
    data, checkpoints = (_local(path, manifest, section) for section in ("data", "checkpoint"))
    name, spec = checked_spec(path, manifest)
    units = sizes(spec)
    processes = spec.syncer.shards
    for pool in spec.pools:
        hosts = slice_of(pool.accelerator, pool.topology, pool.machine_type).hosts
        processes += units[pool.name] * pool.slices_per_unit * hosts
    if processes > MOST_PROCESSES:
        raise UsageError(
            f"{path}: {processes} processes, one a host and one a shard of the syncer; at most {MOST_PROCESSES} "
            "are wanted"
        )
    if sum(units.values()) < 2:
        raise UsageError(f"{path}: spec.pools: at least two units are wanted, so that one can be lost")
    target = spec.target
    if steps is not None:
        target = target.model_copy(update={"global_steps": steps, "tokens": None})
    if target.global_steps is None or target.global_steps < 2:
        raise UsageError(f"{path}: spec.target.globalSteps: 2 or more are wanted; or give --steps")
    # No evaluator: a separate process measures the global model at the end.
    changes = {
        "data": spec.data.model_copy(update={"uri": data}),
        "checkpoint": spec.checkpoint.model_copy(update={"uri": checkpoints}),
        "target": target,
        "evaluation": None,
        "suspend": False,
    }
    return name, spec.model_copy(update=changes)


def _local(path: Path, manifest: dict[str, Any], section: str) -> str:
    """Return the section's file:// URI, and replace it with a bucket's, which a cluster would require."""
    spec = manifest.get("spec")
    part = spec.get(section) if isinstance(spec, dict) else None
    uri = part.get("uri") if isinstance(part, dict) else None
    if part is None or not isinstance(uri, str) or not uri.startswith("file:///") or uri == "file:///":
        raise UsageError(f"{path}: spec.{section}.uri {uri or ''!r}: file:///absolute/path is wanted")
    part["uri"] = "gs://local/try"
    return uri


def _show(
    name: str, spec: TrainingRunSpec, folder: Path, console: Console, *, built_in: bool
) -> dict[str, Any]:
    """Run every stage and return the summary. Leaves no process, also after an error. Raises `CommandError`."""
    target = spec.target.global_steps or 0
    if not built_in:
        Reader(spec.data.uri, "heldout", spec.data.sequence_length)
    operator = Operator(name, spec, folder)
    pods, killed = operator.pods, list[str]()

    def observe() -> Sample:
        operator.look()
        for each, unit in operator.units.items():
            failure = unit.status.last_failure
            if failure is not None and unit.status.restart_count >= FAILURES and not killed:
                raise CommandError(f"{each} fails again and again: {failure.reason}: {failure.message}")
        sample = sample_of(name, operator.objects, time.time())
        pods.give_way(unit for unit, seen in sample.units.items() if seen.learning)  # to those that start
        return sample

    def kill(victims: Sequence[PodView]) -> None:
        for victim in victims:
            killed.append(victim.name)
            pods.all[victim.name].signal(signal.SIGKILL)

    def last_words() -> str:
        return "\n".join(f"{pod.name}: {pod.words}" for pod in pods.all.values() if pod.words)

    watch = Watch(observe, last_words, console, interval=INTERVAL, patient=True)
    healing = Healing(watch, console, kill)
    try:
        with console.stage("start", "A syncer and the learners, as processes of this machine"):
            if built_in:
                told = "the standard library's text: {} of {} files"
                write_stdlib(spec.data.uri, lambda *at: console.live(told.format(*at)))
            units = sum(sizes(spec).values())
            watch.until("all units learning", lambda sample: all_learning(sample, units), SILENCE)
        with console.stage("train", f"Training to a quarter of {target} global steps"):
            watch.until("a quarter of the target", lambda sample: sample.run.step >= target // 4, SILENCE)
        with console.stage("heal", "One learner killed with SIGKILL; the others go on"):
            healing.kill_unit()
        with console.stage("finish", "To the target, and what was learnt"):
            watch.until("completion", lambda sample: sample.run.complete, SILENCE)
            pods.close()
            console.say("measuring the first and the last global model on held-out text")
            evaluations = evaluate_both(spec, GlobalStore(spec.checkpoint.uri).steps()[-1])
        ledgers = ledgers_of(name, operator.objects)
        return judge(watch.samples, healing.seen, ledgers, evaluations, MARGIN, console.timings)
    finally:
        pods.close()
