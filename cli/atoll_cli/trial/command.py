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
from pathlib import Path
from types import FrameType
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
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        name, spec = _read(options.file, folder, options.steps)
        trial = _show(name, spec, folder, console, write_data=options.file is None)
        failures = judge(trial)
        passed = not failures
        if options.json:
            print(json.dumps(as_json(trial, console.timings, failures), indent=2))
        else:
            console.say(render(trial, failures), indent="")
    except CommandError as error:
        if options.json and not isinstance(error, UsageError):
            print(
                json.dumps({"passed": False, "failures": [str(error)], "stages": console.timings}, indent=2)
            )
        raise
    finally:
        if options.folder is None and passed:
            shutil.rmtree(folder, ignore_errors=True)
        elif any(folder.iterdir()):
            print(f"logs, data and checkpoints are kept in {folder}", file=sys.stderr)
        else:
            folder.rmdir()
    return 0 if passed else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


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
    processes = spec.syncer.shards + sum(
        units[pool.name]
        * pool.slices_per_unit
        * slice_of(pool.accelerator, pool.topology, pool.machine_type).hosts
        for pool in spec.pools
    )
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


def _show(name: str, spec: TrainingRunSpec, folder: Path, console: Console, *, write_data: bool) -> Trial:
    """Every stage; no process is left whatever happens. Raises `CommandError`."""
    begun = time.monotonic()
    operator = Operator(name, spec, folder)
    trial = Trial(name=name, target=spec.target.global_steps or 0)

    def until(what: str, reached: Callable[[], bool]) -> None:
        deadline, last = time.monotonic() + SILENCE, ""
        while True:
            operator.look()
            trial.restarts = {each: unit.status.restart_count for each, unit in operator.units.items()}
            if reached():
                return
            if operator.status.phase in ("Complete", "Failed"):
                raise CommandError(
                    f"{what}: the run is {operator.status.phase} before: {operator.status.message}"
                )
            for each, unit in operator.units.items():
                failure = unit.status.last_failure
                if trial.kill is None and failure is not None and unit.status.restart_count >= FAILURES:
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
            if write_data:
                _write_corpus(spec.data.uri, console)
            until("all units learning", learning)
        with console.stage("train", f"Training to half of {trial.target} global steps"):
            until("half of the target", lambda: operator.status.global_step >= trial.target // 2)
        with console.stage("heal", "One learner killed with SIGKILL; the others go on"):
            kill = trial.kill = Kill.of(max(operator.units), operator.units)
            for pod in operator.pods.of_unit(kill.unit):
                console.say(f"killing {pod.name}")
                pod.signal(9)
            until(f"{kill.unit} merged again", lambda: kill.healed(operator.units[kill.unit].status))
            kill.note(operator.units)
            for line in kill.words():
                console.say(line)
        with console.stage("finish", "To the target, and what was learnt"):
            until("completion", lambda: operator.status.phase == "Complete")
            operator.pods.close()
            console.say("measuring the first and the last global model on held-out text")
            with ThreadPoolExecutor() as pool:
                trial.before, trial.after = pool.map(
                    lambda step: _measure(spec, step), (_oldest(spec.checkpoint.uri), None)
                )
    except CommandError as error:
        raise CommandError(f"{error}\n{_last_errors(operator)}") from error
    finally:
        operator.pods.close()
        trial.status, trial.seconds = operator.status, time.monotonic() - begun
    return trial


def _write_corpus(uri: str, console: Console) -> None:
    from atoll_runtime.data.writer import write_stdlib

    write_stdlib(
        uri, lambda done, total: console.live(f"the standard library's text: {done} of {total} files")
    )


def _oldest(checkpoints: str) -> int:
    """Raises `CommandError` when there is no checkpoint."""
    from atoll_runtime.checkpoint.bucket import Bucket, StoreError
    from atoll_runtime.checkpoint.layout import GLOBAL, complete_steps

    try:
        return complete_steps(Bucket(checkpoints).list(GLOBAL))[-1]
    except (StoreError, IndexError) as error:
        raise CommandError(f"{checkpoints}: no complete checkpoint") from error


def _measure(spec: TrainingRunSpec, step: int | None) -> HeldOut:
    return evaluate(spec.checkpoint.uri, step, spec.data.uri, spec.data.sequence_length, {})


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


def _last_errors(operator: Operator) -> str:
    """The end of each log that holds an error, for the message of a failure."""
    found = [f"{pod.name}: {pod.words}" for pod in operator.pods.all.values() if pod.words]
    return "\n".join(found) or "no process wrote an error to its log"
