"""`atoll demo`: runs the demo, returns its exit status, and removes the cluster also after an error."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll_cli.demo.cluster import DemoCluster
from atoll_cli.demo.console import Console
from atoll_cli.demo.evaluation import evaluate_both
from atoll_cli.demo.faults import Faults
from atoll_cli.demo.verdict import judge, render
from atoll_cli.demo.watch import Observer, Watch, all_learning, diagnose
from atoll_cli.errors import CommandError, UsageError, command_errors
from atoll_cli.simulate.runfile import checked_spec, read_manifest
from atoll_cli.views import ledgers_of
from atoll_local.paths import source_root
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.limits import sizes

NEEDED = ("atoll_runtime.checkpoint.bucket", "atoll_runtime.data.writer")
"""Modules that a later stage imports. They are imported early, so that missing packages are reported at once."""
NODE_LOST_SECONDS, STEPS, KEEP = 75, 10_000, 200
"""Values that a run needs to survive a minute without a link: its node counts as lost later, the run lasts until its
target is lowered, and the checkpoint of step 0 is kept in spite of that."""
STAGES = 7
MARGIN = 1.0
"""Nats per token by which the trained model must beat the untrained one."""
MORE_STEPS = 30
"""Global steps after the last fault, with `--cut-link`. The length of the faults is then not known in advance."""

# Time limits in seconds. Ample on two slow cores: a stage that takes longer is broken, not slow.
LEARNING = 600
HALF_WAY = 1200
COMPLETE = 1200


def run_demo(options: argparse.Namespace) -> int:
    """Return exit status 0 if everything was shown, else 1. Raises `CommandError`: a stage did not finish;
    `UsageError`: wrong options, or a machine that cannot run it; `ModuleNotFoundError`: packages are missing."""
    console = Console(STAGES)
    try:
        root = source_root()
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    manifest, name, spec = _run(options, root)
    cluster = DemoCluster(options.name, root / "charts" / "atoll", console.say)
    for module in NEEDED:
        importlib.import_module(module)
    # Also if a shell started us with SIGINT ignored, so that the cluster is removed before the demo ends.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with command_errors():
            summary = _show(options, manifest, name, spec, cluster, console)
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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


def _show(
    options: argparse.Namespace,
    manifest: Mapping[str, Any],
    name: str,
    spec: TrainingRunSpec,
    cluster: DemoCluster,
    console: Console,
) -> dict[str, Any]:
    """Runs every stage and returns the summary. Raises `CommandError`, which says why a stage did not finish.

    Args:
        options: what to break, and where observations go.
        manifest: the run to apply; `name` and `spec` are its own.
    """
    units, target = sum(sizes(spec).values()), spec.target.global_steps or 0
    with console.stage("cluster", "A real Kubernetes"):
        cluster.up()
    with console.stage("data", f"The standard library's text, tokenised, to {spec.data.uri}"):
        _write_data(spec, cluster, console)
    with console.stage("operator", "The operator: helm install"):
        cluster.install()
    kubectl = cluster.kubectl
    observer = Observer(kubectl, name, console.say)
    watch = Watch(observer, lambda: diagnose(kubectl, name), console, options.record)
    faults = Faults(cluster, watch, console)
    with console.stage("start", f"kubectl apply the sample {name}: {units} units"):
        kubectl.apply(manifest)
        watch.until(f"all {units} units learning", lambda sample: all_learning(sample, units), LEARNING)
    half = 0 if options.cut_link else target // 2
    with console.stage("train", f"Training to half of {target} global steps" if half else "Training"):
        off = faults.switch_off_node() if options.lose_node else None
        if options.cut_link:
            faults.cut_link()
        if off is not None:
            faults.switch_on_node(*off)
        if options.delete_pod:
            faults.delete_pod()
        watch.until("half of the target", lambda sample: sample.run.step >= half, HALF_WAY)
    with console.stage("heal", "One whole unit killed: SIGKILL to every process of it"):
        faults.kill_unit()
        if options.kill_syncer:
            faults.kill_syncer()
    with console.stage("finish", "The others never stopped; on to the target, and what was learnt"):
        if options.cut_link:
            step = watch.samples[-1].run.step + MORE_STEPS
            console.say(f"the target is {step} global steps now")
            changed = {**manifest["spec"], "target": {"globalSteps": step}}
            kubectl.apply({**manifest, "spec": changed})
        watch.until("completion", lambda sample: sample.run.complete, COMPLETE)
        console.say("evaluating the untrained and the final global model on held-out text")
        evaluations = evaluate_both(spec, 0)
    ledgers = ledgers_of(name, kubectl.get("trainingruns,learnerunits")["items"])
    return judge(watch.samples, faults.seen, ledgers, evaluations, MARGIN, console.timings)


def _write_data(spec: TrainingRunSpec, cluster: DemoCluster, console: Console) -> None:
    """Writes the data set, and deletes the checkpoints that an earlier demo left."""
    # This process and its evaluations reach the bucket by these variables.
    os.environ.update(cluster.local.bucket.environment())
    # Google's client warns that there is no metadata server. The emulator has none.
    logging.getLogger("google.auth").setLevel(logging.ERROR)
    from atoll_runtime.checkpoint.bucket import Bucket
    from atoll_runtime.data.writer import write_stdlib

    Bucket(spec.checkpoint.uri).delete_tree("")
    catalogue = write_stdlib(spec.data.uri, lambda done, total: console.live(f"{done} of {total} files"))
    tokens = {name: sum(shard.tokens for shard in split.shards) for name, split in catalogue.splits.items()}
    console.say(", ".join(f"{name}: {count:,} tokens" for name, count in tokens.items()))
