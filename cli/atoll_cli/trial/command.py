"""`atoll try`: options in, exit status out, and no process left behind."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from atoll_cli.demo.console import Console
from atoll_cli.demo.evaluation import HeldOut, evaluate
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.simulate.runfile import checked_spec, read_manifest
from atoll_cli.text import amount, loss, seconds
from atoll_cli.trial.operator import Operator
from atoll_cli.trial.verdict import Kill, Trial, as_json, judge, render
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.conditions import is_true
from atoll_operator.plan.pods.topology import slice_of
from atoll_operator.plan.run.elastic import sizes
from atoll_runtime.checkpoint import Bucket, GlobalStore, StoreError
from atoll_runtime.data import DataError, open_catalogue, write_stdlib

BUILT_IN = Path(__file__).with_name("run.yaml")
FOLDER = "/FOLDER/"
"""In the built-in run, the folder of this trial."""
STAGES = 4
INTERVAL = 0.5
"""Seconds between two looks."""
SILENCE = 300.0
"""Longest time in seconds without a change of what is waited for. Whatever takes longer is broken, not slow."""
FAILURES = 2
"""Restarts of a unit that nobody killed, after which waiting for it makes no sense."""
MOST_PROCESSES = 16


def run_try(options: argparse.Namespace) -> int:
    """0 when all of it was shown, 1 when not.

    Raises:
        CommandError: a stage did not come to its end.
        UsageError: wrong options, or a run that this machine cannot show.
    """
    console = Console(STAGES, sys.stderr if options.json else None)
    folder = _folder(options.folder)
    passed = False
    for number in (signal.SIGTERM, signal.SIGHUP):  # the processes are in sessions of their own
        signal.signal(number, signal.default_int_handler)
    try:
        name, spec = _read(options.file, folder, options.steps)
        trial = _show(name, spec, folder, console, built_in=options.file is None)
        failures = judge(trial)
        passed = not failures
        if options.json:
            print(json.dumps(as_json(trial, console.timings, failures), indent=2))
        else:
            console.say(render(trial, failures), indent="")
    except CommandError as error:
        if options.json and not isinstance(error, UsageError):
            told = {"passed": False, "failures": [str(error)], "stages": console.timings}
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
    # The global model is measured at the end, by a process of its own.
    changes = {
        "data": spec.data.model_copy(update={"uri": data}),
        "checkpoint": spec.checkpoint.model_copy(update={"uri": checkpoints}),
        "target": target,
        "evaluation": None,
        "suspend": False,
    }
    return name, spec.model_copy(update=changes)


def _local(path: Path, manifest: dict[str, Any], section: str) -> str:
    """Take out the section's file:// URI, and put that of a bucket there, which a cluster would ask for."""
    spec = manifest.get("spec")
    part = spec.get(section) if isinstance(spec, dict) else None
    uri = part.get("uri") if isinstance(part, dict) else None
    if part is None or not isinstance(uri, str) or not uri.startswith("file:///") or uri == "file:///":
        raise UsageError(f"{path}: spec.{section}.uri {uri or ''!r}: file:///absolute/path is wanted")
    part["uri"] = "gs://local/try"
    return uri


def _show(name: str, spec: TrainingRunSpec, folder: Path, console: Console, *, built_in: bool) -> Trial:
    """Every stage; no process is left whatever happens. Raises `CommandError`."""
    begun, trial, target = time.monotonic(), Trial(name), spec.target.global_steps or 0
    if not built_in:
        _data(spec.data.uri, lambda uri: open_catalogue(Bucket(uri)))
    operator = Operator(name, spec, folder)

    def until(what: str, reached: Callable[[], bool]) -> None:
        deadline, last = time.monotonic() + SILENCE, ""
        while True:
            operator.look()
            trial.restarts = {each: unit.status.restart_count for each, unit in operator.units.items()}
            if reached():
                return
            if operator.status.phase in ("Complete", "Failed"):
                raise CommandError(f"{what}: the run is {operator.status.phase}: {operator.status.message}")
            for each, unit in operator.units.items():
                failure = unit.status.last_failure
                if trial.killed is None and failure is not None and unit.status.restart_count >= FAILURES:
                    raise CommandError(
                        f"{what}: {each} fails again and again: {failure.reason}: {failure.message}"
                    )
            if (line := _line(operator)) != last:
                deadline, last = time.monotonic() + SILENCE, line
            elif time.monotonic() > deadline:
                raise CommandError(f"{what}: nothing changed for {seconds(SILENCE)}; {line}")
            console.live(line)
            time.sleep(INTERVAL)

    def learning() -> bool:
        units = operator.units.values()
        return bool(units) and all(is_true(unit.status.conditions, "Learning") for unit in units)

    try:
        with console.stage("start", "A syncer and the learners, as processes of this machine"):
            if built_in:
                told = "the standard library's text: {} of {} files"
                _data(
                    spec.data.uri, lambda uri: write_stdlib(uri, lambda *at: console.live(told.format(*at)))
                )
            until("all units learning", learning)
        with console.stage("train", f"Training to half of {target} global steps"):
            until("half of the target", lambda: operator.status.global_step >= target // 2)
        with console.stage("heal", "One learner killed with SIGKILL; the others go on"):
            kill = trial.killed = Kill.of(max(operator.units), operator.units)
            operator.pods.give_way()
            for pod in operator.pods.of_unit(kill.unit):
                console.say(f"killing {pod.name}")
                pod.signal(9)
            until(f"{kill.unit} merged again", lambda: kill.healed(operator.units[kill.unit].status))
            operator.pods.give_way()
            kill.note(operator.units)
            console.say(str(kill))
        with console.stage("finish", "To the target, and what was learnt"):
            until("completion", lambda: operator.status.phase == "Complete")
            operator.pods.close()
            console.say("measuring the first and the last global model on held-out text")
            trial.held_out = _measured(spec)
    except CommandError as error:
        found = [f"{pod.name}: {pod.words}" for pod in operator.pods.all.values() if pod.words]
        raise CommandError("\n".join([str(error), *found])) from error
    finally:
        operator.pods.close()
        trial.phase, trial.global_step = operator.status.phase, operator.status.global_step
        trial.seconds = round(time.monotonic() - begun, 1)
    return trial


def _data(uri: str, call: Callable[[str], object]) -> None:
    """Write or open the data set. Raises `CommandError`."""
    try:
        call(uri)
    except DataError as error:
        raise UsageError(str(error)) from error
    except StoreError as error:
        raise CommandError(str(error)) from error


def _measured(spec: TrainingRunSpec) -> dict[str, HeldOut]:
    """Held-out losses of the first and the last checkpoint. Raises `CommandError`."""
    steps = GlobalStore(spec.checkpoint.uri).steps()
    asked = {"before": steps[-1], "after": steps[0]}
    with ThreadPoolExecutor() as pool:
        measure = partial(evaluate, spec.checkpoint.uri, data=spec.data.uri, length=spec.data.sequence_length)
        return dict(
            zip(asked, pool.map(lambda step: measure(step, environment={}), asked.values()), strict=True)
        )


def _line(operator: Operator) -> str:
    status = operator.status
    units = [
        f"{name}#{unit.status.incarnation}:{unit.status.step}"
        + ("" if is_true(unit.status.conditions, "Learning") else f" ({unit.status.phase})")
        for name, unit in sorted(operator.units.items())
    ]
    head = (
        f"{status.phase} · step {status.global_step}/{status.target_steps or '-'} · loss {loss(status.loss)}"
    )
    return " | ".join([f"{head} · {amount(status.tokens_per_second)} tokens/s", *units])
