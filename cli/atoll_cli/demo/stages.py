"""The demo, stage by stage."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from typing import Any

from atoll_cli.demo.cluster import DemoCluster
from atoll_cli.demo.console import Console
from atoll_cli.demo.diagnosis import diagnose
from atoll_cli.demo.evaluation import evaluate_both
from atoll_cli.demo.faults import Faults
from atoll_cli.demo.watch import Observer, Watch, all_learning
from atoll_cli.views import ledgers_of
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.limits import sizes

STAGES = 7
MARGIN = 1.0
"""Nats per token by which the trained model must beat the untrained one."""
MORE_STEPS = 30
"""Global steps after the last fault, with `--cut-link`. The length of the faults is then not known in advance."""

# Time limits in seconds. Ample on two slow cores: a stage that takes longer is broken, not slow.
LEARNING = 600
HALF_WAY = 1200
COMPLETE = 1200


def show(
    options: argparse.Namespace,
    manifest: Mapping[str, Any],
    name: str,
    spec: TrainingRunSpec,
    cluster: DemoCluster,
    console: Console,
) -> dict[str, Any]:
    """Runs every stage and returns the summary. The caller removes the cluster.

    Args:
        options: what to break, and where observations go.
        manifest: the run to apply; `name` and `spec` are its own.

    Raises:
        CommandError: a stage did not finish; the message says why.
    """
    units, target = sum(sizes(spec).values()), spec.target.global_steps or 0
    with console.stage("cluster", "A real Kubernetes"):
        cluster.up()
    with console.stage("data", f"The standard library's text, tokenised, to {spec.data.uri}"):
        _write_data(spec, cluster, console)
    with console.stage("operator", "The operator: helm install"):
        cluster.install()
    kubectl = cluster.kubectl
    watch = Watch(
        Observer(kubectl, name, console.say),
        lambda: diagnose(kubectl, name),
        console,
        options.record,
    )
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
    return faults.verdict(ledgers, evaluations, MARGIN)


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
