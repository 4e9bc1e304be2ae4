"""The demo, stage by stage."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from atoll_cli.demo.cluster import NAMESPACE, DemoCluster
from atoll_cli.demo.console import Console
from atoll_cli.demo.evaluation import HeldOut, evaluate
from atoll_cli.demo.faults import Faults
from atoll_cli.demo.sample import RunFile
from atoll_cli.demo.verdict import Observations, Summary, judge
from atoll_cli.demo.watch import Watch
from atoll_cli.errors import CommandError
from atoll_cli.views import LedgerView, Sample, ledgers_of

STAGES = 7

# Seconds, on two slow cores with room to spare; a stage that passes one of them is broken, not slow.
LEARNING = 600
HALF_WAY = 1200
COMPLETE = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to show."""

    run: RunFile
    margin: float
    """Nats per token."""
    delete_pod: bool = False
    lose_node: bool = False
    cut_link: bool = False
    kill_syncer: bool = False
    record: Path | None = None


class Demo:
    """One passage through the stages."""

    def __init__(self, plan: Plan, cluster: DemoCluster, console: Console) -> None:
        self._plan = plan
        self._cluster = cluster
        self._console = console

    def execute(self) -> Summary:
        """Every stage; the cluster is left to the caller.

        Raises:
            CommandError: a stage did not come to its end; the message says why.
        """
        console, plan, run = self._console, self._plan, self._plan.run
        with console.stage("cluster", "A real Kubernetes"):
            self._cluster.up()
        with console.stage("data", f"The standard library's text, tokenised, to {run.data}"):
            self._write_data()
        with console.stage("operator", "The operator: helm install"):
            self._cluster.install()
        watch = Watch(self._cluster.kubectl, NAMESPACE, run.name, console, plan.record)
        faults = Faults(self._cluster, watch, console)
        with console.stage("start", f"kubectl apply {run.path.name}: {run.units} units"):
            self._apply()
            watch.until(
                f"all {run.units} units learning", lambda sample: _all_learning(sample, run.units), LEARNING
            )
        with console.stage("train", f"Training to half of {run.target} global steps"):
            off = faults.switch_off_node() if plan.lose_node else None
            if plan.cut_link:
                faults.cut_link()
            if off is not None:
                faults.switch_on_node(*off)
            if plan.delete_pod:
                faults.delete_pod()
            watch.until("half of the target", lambda sample: sample.run.step >= run.target // 2, HALF_WAY)
        with console.stage("heal", "One whole unit killed: SIGKILL to every process of it"):
            faults.kill_unit()
            if plan.kill_syncer:
                faults.kill_syncer()
        with console.stage("finish", "The others never stopped; on to the target, and what was learnt"):
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
            margin=plan.margin,
        )
        return judge(seen)

    def _write_data(self) -> None:
        """Writes the data set, and clears the run's folder of what an earlier demo left."""
        os.environ.update(self._cluster.bucket_environment)
        # Google's client warns that there is no metadata server; with the emulator there is none to be had.
        logging.getLogger("google.auth").setLevel(logging.ERROR)
        from atoll_runtime.checkpoint.bucket import Bucket
        from atoll_runtime.data.writer import write_stdlib
        from atoll_runtime.payloads import StoreError

        try:
            Bucket(self._plan.run.checkpoints).delete_tree("")
            catalogue = write_stdlib(
                self._plan.run.data, lambda done, total: self._console.live(f"{done} of {total} files")
            )
        except StoreError as error:
            raise CommandError(str(error)) from error
        tokens = {
            name: sum(shard.tokens for shard in split.shards) for name, split in catalogue.splits.items()
        }
        self._console.say(", ".join(f"{name}: {count:,} tokens" for name, count in tokens.items()))

    def _apply(self) -> None:
        run = self._plan.run
        if run.changed:
            self._cluster.kubectl.apply([run.manifest], "-n", NAMESPACE)
        else:
            self._cluster.kubectl.run("apply", "-n", NAMESPACE, "-f", str(run.path))

    def _evaluate(self, step: int | None) -> HeldOut:
        run = self._plan.run
        return evaluate(
            run.checkpoints, step, run.data, run.sequence_length, self._cluster.bucket_environment
        )

    def _ledgers(self) -> dict[str, LedgerView]:
        listing = self._cluster.kubectl.get("trainingruns,learnerunits", "-n", NAMESPACE)
        return ledgers_of(self._plan.run.name, listing["items"])


def _all_learning(sample: Sample, units: int) -> bool:
    return len(sample.units) == units and all(unit.learning for unit in sample.units.values())
