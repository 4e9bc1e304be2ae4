"""The demo, stage by stage."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atoll_cli.demo.cluster import NAMESPACE, DemoCluster
from atoll_cli.demo.console import Console
from atoll_cli.demo.diagnosis import diagnose
from atoll_cli.demo.evaluation import HeldOut, evaluate
from atoll_cli.demo.faults import Faults
from atoll_cli.demo.verdict import Observations, judge
from atoll_cli.demo.watch import Observer, Watch, all_learning
from atoll_cli.views import LedgerView, ledgers_of
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


class Demo:
    """One pass through the stages.

    Args:
        options: what to break, and where observations go.
        manifest: the run to apply; `name` and `spec` are its own.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        manifest: Mapping[str, Any],
        name: str,
        spec: TrainingRunSpec,
        cluster: DemoCluster,
        console: Console,
    ) -> None:
        self._options, self._manifest, self._name, self._spec = options, manifest, name, spec
        self._cluster, self._console = cluster, console

    def execute(self) -> dict[str, Any]:
        """Runs every stage and returns the summary. The caller removes the cluster.

        Raises:
            CommandError: a stage did not finish; the message says why.
        """
        console, options, spec = self._console, self._options, self._spec
        units, target = sum(sizes(spec).values()), spec.target.global_steps or 0
        with console.stage("cluster", "A real Kubernetes"):
            self._cluster.up()
        with console.stage("data", f"The standard library's text, tokenised, to {spec.data.uri}"):
            self._write_data()
        with console.stage("operator", "The operator: helm install"):
            self._cluster.install()
        kubectl = self._cluster.kubectl
        watch = Watch(
            Observer(kubectl, NAMESPACE, self._name, console.say),
            lambda: diagnose(kubectl, NAMESPACE, self._name),
            console,
            options.record,
        )
        faults = Faults(self._cluster, watch, console)
        with console.stage("start", f"kubectl apply the sample {self._name}: {units} units"):
            kubectl.apply([self._manifest], "-n", NAMESPACE)
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
                self._end_at(watch.samples[-1].run.step + MORE_STEPS)
            watch.until("completion", lambda sample: sample.run.complete, COMPLETE)
            console.say("evaluating the untrained and the final global model on held-out text")
            with ThreadPoolExecutor() as pool:
                untrained, trained = pool.map(self._evaluate, (0, None))
        seen = Observations(
            samples=watch.samples,
            faults=faults.seen,
            ledgers=self._ledgers(),
            untrained=untrained,
            trained=trained,
            margin=MARGIN,
        )
        return judge(seen, console.timings)

    def _write_data(self) -> None:
        """Writes the data set, and deletes the checkpoints that an earlier demo left."""
        os.environ.update(self._cluster.bucket_environment)
        # Google's client warns that there is no metadata server. The emulator has none.
        logging.getLogger("google.auth").setLevel(logging.ERROR)
        from atoll_runtime.checkpoint.bucket import Bucket
        from atoll_runtime.data.writer import write_stdlib

        Bucket(self._spec.checkpoint.uri).delete_tree("")
        catalogue = write_stdlib(
            self._spec.data.uri, lambda done, total: self._console.live(f"{done} of {total} files")
        )
        tokens = {
            name: sum(shard.tokens for shard in split.shards) for name, split in catalogue.splits.items()
        }
        self._console.say(", ".join(f"{name}: {count:,} tokens" for name, count in tokens.items()))

    def _end_at(self, step: int) -> None:
        spec = {**self._manifest["spec"], "target": {"globalSteps": step}}
        self._console.say(f"the target is {step} global steps now")
        self._cluster.kubectl.apply([{**self._manifest, "spec": spec}], "-n", NAMESPACE)

    def _evaluate(self, step: int | None) -> HeldOut:
        data, checkpoints = self._spec.data, self._spec.checkpoint.uri
        return evaluate(checkpoints, step, data.uri, data.sequence_length, self._cluster.bucket_environment)

    def _ledgers(self) -> dict[str, LedgerView]:
        listing = self._cluster.kubectl.get("trainingruns,learnerunits", "-n", NAMESPACE)
        return ledgers_of(self._name, listing["items"])
