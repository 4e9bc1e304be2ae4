"""The demo, stage by stage."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from atoll_cli.demo.console import Console
from atoll_cli.demo.evaluation import evaluate
from atoll_cli.demo.installation import NAMESPACE, Chart, Installation
from atoll_cli.demo.place import Place
from atoll_cli.demo.sample import RunFile
from atoll_cli.demo.verdict import Observations, Summary, healed, judge
from atoll_cli.demo.watch import Watch
from atoll_cli.errors import CommandError
from atoll_cli.views import PodView, Sample

STAGES = 7

# Seconds, on two slow cores with room to spare; a stage that passes one of them is broken, not slow.
LEARNING = 600
HALF_WAY = 1200
HEALED = 600
COMPLETE = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to show."""

    name: str
    """Of this demo, unlike any other's; a label on what it makes."""
    run: RunFile
    chart: Chart
    margin: float
    """Nats per token."""
    delete_pod: bool = False
    kill_syncer: bool = False
    record: Path | None = None


class Demo:
    """One passage through the stages."""

    def __init__(self, plan: Plan, place: Place, console: Console) -> None:
        self._plan = plan
        self._place = place
        self._console = console
        self.installation = Installation(place, plan.chart, plan.name)

    def execute(self) -> Summary:
        """Every stage; the cluster is left to the caller.

        Raises:
            CommandError: a stage did not come to its end; the message says why.
        """
        console, run = self._console, self._plan.run
        with console.stage("cluster", "A real Kubernetes"):
            self._place.up()
            self.installation.check()
        with console.stage("data", f"The standard library's text, tokenised, to {run.data}"):
            self._write_data()
        with console.stage("operator", "The operator: helm install"):
            self.installation.make()
        watch = Watch(self._place.kubectl, NAMESPACE, run.name, console, self._plan.record)
        with console.stage("start", f"kubectl apply {run.path.name}: {run.units} units"):
            self._apply()
            watch.until(
                f"all {run.units} units learning", lambda sample: _all_learning(sample, run.units), LEARNING
            )
        deleted = ""
        with console.stage("train", f"Training to half of {run.target} global steps"):
            if self._plan.delete_pod:
                deleted = self._delete_pod(watch)
            half = watch.until(
                "half of the target", lambda sample: sample.run.step >= run.target // 2, HALF_WAY
            )
        with console.stage("heal", "One whole unit killed: SIGKILL to every process of it"):
            victim, killed_at = self._break_and_heal(watch, half)
            if self._plan.kill_syncer:
                self._break_syncer(watch)
        with console.stage("finish", "The others never stopped; on to the target, and what was learnt"):
            watch.until("completion", lambda sample: sample.run.complete, COMPLETE)
            console.say("evaluating the untrained and the final global model on held-out text")
            scores = [
                evaluate(run.checkpoints, step, run.data, run.sequence_length, self._place.bucket_environment)
                for step in (0, None)
            ]
        seen = Observations(
            samples=watch.samples,
            victim=victim,
            pod_deleted=deleted,
            killed_at=killed_at,
            syncer_killed=self._plan.kill_syncer,
            untrained=scores[0],
            trained=scores[1],
            margin=self._plan.margin,
        )
        return judge(seen)

    def _write_data(self) -> None:
        """Writes the data set, and clears the run's folder of what an earlier demo left in a bucket of ours."""
        os.environ.update(self._place.bucket_environment)
        # Google's client warns that there is no metadata server; with the emulator there is none to be had.
        logging.getLogger("google.auth").setLevel(logging.ERROR)
        from atoll_runtime.checkpoint.bucket import Bucket, StoreError
        from atoll_runtime.data.writer import write_stdlib

        try:
            if self._place.replaces:
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
            self._place.kubectl.apply([run.manifest], "-n", NAMESPACE)
        else:
            self._place.kubectl.run("apply", "-n", NAMESPACE, "-f", str(run.path))

    def _delete_pod(self, watch: Watch) -> str:
        """Deletes one pod of the unit with the most hosts and waits for the unit's return; the pod's name."""
        before = watch.look()
        victim = _largest(before)
        pod = before.pods_of(victim)[-1]
        self._console.say(f"kubectl delete pod {pod.name}")
        deleted_at = time.time()
        self._place.kubectl.run("delete", "pod", "-n", NAMESPACE, "--wait=false", pod.name)
        incarnation = before.units[victim].incarnation
        back = watch.until(
            f"{victim} learning again", lambda sample: healed(sample, victim, incarnation), HEALED
        )
        kept = {each.uid for each in back.pods_of(victim)} & {each.uid for each in before.pods_of(victim)}
        self._console.say(
            f"{victim} is back {back.time - deleted_at:.1f} s after it; {len(kept)} of its pods stayed"
        )
        return pod.name

    def _break_and_heal(self, watch: Watch, half: Sample) -> tuple[str, float]:
        """Kills the unit with the most hosts and waits for its return; its name and its time of death."""
        victim = _largest(half)
        at_kill = watch.look()
        pods = at_kill.pods_of(victim)
        self._console.say(f"killing {victim}: {', '.join(f'{pod.name} on {pod.node}' for pod in pods)}")
        killed_at = time.time()
        self._place.kill(pods, NAMESPACE)
        incarnation = at_kill.units[victim].incarnation
        back = watch.until(
            f"{victim} learning again",
            lambda sample: healed(sample, victim, incarnation) or sample.run.complete,
            HEALED,
        )
        if not healed(back, victim, incarnation):
            raise CommandError(f"the run was complete before {victim} learned again")
        unit = back.units[victim]
        self._console.say(
            f"{victim} is back as incarnation {unit.incarnation}, "
            f"seeded from global step {unit.seeded_step}, {back.time - killed_at:.1f} s after the kill"
        )
        for name in sorted(set(back.units) - {victim}):
            self._console.say(
                f"{name} made {back.units[name].step - at_kill.units[name].step} steps meanwhile"
            )
        return victim, killed_at

    def _break_syncer(self, watch: Watch) -> None:
        """Kills the syncer's processes; returns when the same pod merges again."""
        now = watch.look()
        syncer = _syncer(now)
        self._console.say(f"killing the syncer: {syncer.name}")
        killed_at = time.time()
        self._place.kill([syncer], NAMESPACE)
        back = watch.until(
            "the syncer going on from its journal",
            lambda sample: (
                _resumed(sample, syncer) and (sample.run.step > now.run.step or sample.run.complete)
            ),
            HEALED,
        )
        self._console.say(f"the syncer merges again, {back.time - killed_at:.1f} s after the kill")


def _largest(sample: Sample) -> str:
    """The unit with the most hosts."""
    return max(sample.units, key=lambda unit: (len(sample.pods_of(unit)), unit))


def _all_learning(sample: Sample, units: int) -> bool:
    return len(sample.units) == units and all(unit.learning for unit in sample.units.values())


def _syncer(sample: Sample) -> PodView:
    """Raises `CommandError` when the run has no syncer pod."""
    for pod in sample.pods.values():
        if pod.component == "syncer":
            return pod
    raise CommandError(f"the run {sample.run.name} has no syncer pod")


def _resumed(sample: Sample, before: PodView) -> bool:
    now = sample.pods.get(before.name)
    if now is None:
        return sample.run.complete
    return now.uid != before.uid or now.container_restarts > before.container_restarts
