"""`atoll demo`: options in, exit status out, and the cluster removed whatever happens."""

from __future__ import annotations

import argparse
import importlib
import json
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from atoll_cli.demo.console import Console
from atoll_cli.demo.installation import NAMESPACE, Chart
from atoll_cli.demo.place import ContextPlace, LocalPlace, Place
from atoll_cli.demo.report import render
from atoll_cli.demo.sample import load_run
from atoll_cli.demo.stages import STAGES, Demo, Plan
from atoll_cli.demo.verdict import as_json
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.values import plain
from atoll_local.paths import source_root

MOST_MARGIN = 100.0
NEEDED = ("atoll_runtime.checkpoint.bucket", "atoll_runtime.data.writer")
"""What a later stage imports: where its packages are missing, that is told before a cluster is started."""


def run_demo(options: argparse.Namespace) -> int:
    """0 when all of it was shown, 1 when not.

    Raises:
        CommandError: a stage did not come to its end.
        UsageError: wrong options, or a machine that cannot run it.
        ModuleNotFoundError: packages are missing.
    """
    console = Console(STAGES)
    plan = _plan(options)
    place = _place(options, console)
    for name in NEEDED:
        importlib.import_module(name)
    demo = Demo(plan, place, console)
    # Both, also where a shell started us with SIGINT ignored: whatever ends the demo, the cluster goes first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        summary = demo.execute()
        _write(options.json, as_json(summary, console.timings))
        console.say(render(summary, console.timings), indent="")
        status = 1 if summary.failures else 0
    except CommandError as error:
        _write(options.json, {"passed": False, "failures": [str(error)], "timings": console.timings})
        raise
    finally:
        left_clean = _leave(options.keep, demo, place, console)
    return status if left_clean else 1


def _write(path: Path | None, document: Mapping[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(document, indent=2) + "\n")


def _leave(keep: bool, demo: Demo, place: Place, console: Console) -> bool:
    """True unless something stands that was to go; it is told here, as the demo may have an error of its own."""
    installation = demo.installation
    if keep and place.reached:
        console.say(f"the cluster stays up:\n  {place.how_to_reach()}", indent="")
        if installation.begun and not place.replaces:
            console.say(f"to remove what the demo put there:\n  {installation.how_to_remove()}", indent="")
        return True
    # A second Ctrl-C must not leave half a cluster behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    left_clean = True
    if place.stays and installation.begun:
        console.say("removing the run and the operator")
        left_clean = _removed(installation.remove, console)
    return _removed(place.down, console) and left_clean


def _removed(remove: Callable[[], None], console: Console) -> bool:
    try:
        remove()
    except CommandError as error:
        console.say(f"not removed: {error}", indent="")
        return False
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _plan(options: argparse.Namespace) -> Plan:
    try:
        root = source_root()
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    margin = plain("--margin", options.margin, -MOST_MARGIN, MOST_MARGIN)
    for path in (options.json, options.record):
        if path and not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}")
    if options.record:
        options.record.unlink(missing_ok=True)
    if options.bucket and "://" in options.bucket:
        raise UsageError(f"--bucket {options.bucket!r}: the bare name is wanted")
    sample = root / "manifests" / "samples" / "quickstart.yaml"
    # A bucket of the user's may hold runs of that name: each demo has a folder of its own, and clears none.
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
    return Plan(
        name=name,
        run=load_run(sample, bucket=options.bucket, folder=f"{NAMESPACE}/{name}", seed=options.seed),
        chart=Chart(
            path=root / "charts" / "atoll",
            operator_image=_tagged("--operator-image", options.operator_image),
            runtime_image=_tagged("--runtime-image", options.runtime_image),
        ),
        margin=margin,
        delete_pod=options.delete_pod,
        kill_syncer=options.kill_syncer,
        record=options.record,
    )


def _place(options: argparse.Namespace, console: Console) -> Place:
    if options.context:
        if not options.bucket:
            if LocalPlace.is_current(options.name, options.context):
                return LocalPlace(options.name, console.say)
            raise UsageError(
                "--context needs --bucket: the name of a bucket that the cluster and you can write"
            )
        environment = _environment(options.runtime_env)
        for name in ("operator_image", "runtime_image"):
            if not getattr(options, name):
                raise UsageError(
                    f"--context needs --{name.replace('_', '-')}: no image of Atoll is published; build it and push it "
                    "where the cluster can pull it (docs/gke.md)"
                )
        return ContextPlace(options.context, environment)
    foreign = [
        name
        for name in ("bucket", "operator_image", "runtime_image", "runtime_env")
        if getattr(options, name)
    ]
    if foreign:
        raise UsageError(f"--{foreign[0].replace('_', '-')} is for a cluster that exists: it needs --context")
    return LocalPlace(options.name, console.say)


def _environment(pairs: list[str]) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise UsageError(f"--runtime-env {wrong[0]!r}: NAME=VALUE is wanted")
    return dict(pair.split("=", 1) for pair in pairs)


def _tagged(option: str, image: str | None) -> str | None:
    if image is not None and ":" not in image.rsplit("/", 1)[-1]:
        raise UsageError(f"{option} {image!r}: repository:tag is wanted")
    return image
