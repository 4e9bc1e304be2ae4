"""`atoll demo`: runs the demo, returns its exit status, and removes the cluster also after an error."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll_cli.demo.cluster import DemoCluster
from atoll_cli.demo.console import Console
from atoll_cli.demo.report import render
from atoll_cli.demo.stages import STAGES, show
from atoll_cli.errors import CommandError, UsageError, command_errors
from atoll_cli.simulate.runfile import checked_spec, read_manifest
from atoll_local.paths import source_root
from atoll_operator.api.trainingrun import TrainingRunSpec

NEEDED = ("atoll_runtime.checkpoint.bucket", "atoll_runtime.data.writer")
"""Modules that a later stage imports. They are imported early, so that missing packages are reported at once."""
NODE_LOST_SECONDS, STEPS, KEEP = 75, 10_000, 200
"""Values that a run needs to survive a minute without a link: its node counts as lost later, the run lasts until its
target is lowered, and the checkpoint of step 0 is kept in spite of that."""


def run_demo(options: argparse.Namespace) -> int:
    """Return exit status 0 if everything was shown, else 1.

    Raises:
        CommandError: a stage did not finish.
        UsageError: wrong options, or a machine that cannot run it.
        ModuleNotFoundError: packages are missing.
    """
    console = Console(STAGES)
    try:
        root = source_root()
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    manifest, name, spec = _run(options, root)
    cluster = DemoCluster(options.name, root / "charts" / "atoll", console.say)
    for module in NEEDED:
        importlib.import_module(module)
    # Both, also if a shell started us with SIGINT ignored, so that the cluster is removed before the demo ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with command_errors():
            summary = show(options, manifest, name, spec, cluster, console)
        _write(options.json, summary)
        console.say(render(summary), indent="")
        status = 0 if summary["passed"] else 1
    except CommandError as error:
        _write(options.json, {"passed": False, "failures": [str(error)], "timings": console.timings})
        raise
    finally:
        left_clean = _leave(options.keep, cluster, console)
    return status if left_clean else 1


def _write(path: Path | None, document: Mapping[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(document, indent=2) + "\n")


def _leave(keep: bool, cluster: DemoCluster, console: Console) -> bool:
    """Return whether all was removed. An error is printed here, because the demo may raise one of its own."""
    if keep and cluster.reached:
        console.say(f"the cluster stays up:\n  export KUBECONFIG={cluster.local.kubeconfig}", indent="")
        return True
    # A second Ctrl-C must not leave half a cluster behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        with command_errors():
            cluster.leave()
    except CommandError as error:
        console.say(f"not removed: {error}", indent="")
        return False
    return True


def _run(options: argparse.Namespace, root: Path) -> tuple[dict[str, Any], str, TrainingRunSpec]:
    """Return the sample's manifest, name and spec, changed as the options need. Raises `UsageError`."""
    if options.record:
        options.record.unlink(missing_ok=True)
    run = root / "manifests" / "samples" / "quickstart.yaml"
    manifest = read_manifest(run)
    if options.cut_link:
        manifest["spec"]["recovery"] = {"nodeLostSeconds": NODE_LOST_SECONDS}
        manifest["spec"]["target"]["globalSteps"] = STEPS
        manifest["spec"]["inner"]["schedule"] = "Constant"  # with other schedules the target is fixed
        manifest["spec"]["checkpoint"]["keep"] = KEEP
    return manifest, *checked_spec(run, manifest)
