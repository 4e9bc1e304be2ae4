"""The demo, stage by stage."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll_cli.demo.console import Console
from atoll_cli.demo.diagnosis import operator_diagnosis
from atoll_cli.demo.evaluation import evaluate
from atoll_cli.demo.place import Place
from atoll_cli.demo.sample import RunFile
from atoll_cli.demo.verdict import Observations, Summary, healed, judge
from atoll_cli.demo.watch import Watch
from atoll_cli.errors import CommandError
from atoll_cli.views import PodView, Sample

STAGES = 7
NAMESPACE = "atoll-demo"
SYSTEM = "atoll-system"
RELEASE = "atoll"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

# Seconds, on two slow cores with room to spare; a stage that passes one of them is broken, not slow.
OPERATOR_READY = 180
LEARNING = 600
HALF_WAY = 1200
HEALED = 600
COMPLETE = 1200
REMOVED = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to show."""

    run: RunFile
    chart: Path
    margin: float
    """Nats per token."""
    kill_syncer: bool = False
    record: Path | None = None
    operator_image: str | None = None
    runtime_image: str | None = None


class Demo:
    """One passage through the stages."""

    def __init__(self, plan: Plan, place: Place, console: Console) -> None:
        self._plan = plan
        self._place = place
        self._console = console

    def execute(self) -> Summary:
        """Every stage; the cluster is left to the caller.

        Raises:
            CommandError: a stage did not come to its end; the message says why.
        """
        console, run = self._console, self._plan.run
        with console.stage("cluster", "A real Kubernetes"):
            self._place.up()
        with console.stage("data", f"The standard library's text, tokenised, to {run.data}"):
            self._write_data()
        with console.stage("operator", "The operator: helm install"):
            self._install()
        watch = Watch(self._place.kubectl, NAMESPACE, run.name, console, self._plan.record)
        with console.stage("start", f"kubectl apply {run.path.name}: {run.units} units"):
            self._apply()
            watch.until(
                f"all {run.units} units learning", lambda sample: _all_learning(sample, run.units), LEARNING
            )
        with console.stage("train", f"Training to half of {run.target} global steps"):
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
            killed_at=killed_at,
            syncer_killed=self._plan.kill_syncer,
            untrained=scores[0],
            trained=scores[1],
            margin=self._plan.margin,
        )
        return judge(seen)

    def remove(self) -> None:
        """Takes run, namespace and operator from a cluster that stays."""
        self._delete_namespace()
        self._helm("uninstall", RELEASE, "--ignore-not-found")

    def _write_data(self) -> None:
        """Writes the data set, and clears the run's folder of what an earlier demo left."""
        os.environ.update(self._place.bucket_environment)
        # Google's client warns that there is no metadata server; with the emulator there is none to be had.
        logging.getLogger("google.auth").setLevel(logging.ERROR)
        from atoll_runtime.checkpoint.bucket import Bucket, StoreError
        from atoll_runtime.data.writer import write_stdlib

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

    def _install(self) -> None:
        kubectl = self._place.kubectl
        self._delete_namespace()
        namespaces = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
            for name in (SYSTEM, NAMESPACE)
        ]
        kubectl.apply(namespaces, "--server-side")
        try:
            self._helm(
                "upgrade",
                "--install",
                RELEASE,
                str(self._plan.chart),
                "--wait",
                f"--timeout={OPERATOR_READY}s",
                f"--set-json=runtime.env={json.dumps(dict(self._place.runtime_environment))}",
                *_image("image", self._plan.operator_image),
                *_image("runtime.image", self._plan.runtime_image),
            )
        except CommandError as error:
            raise CommandError(f"{error}\n{operator_diagnosis(kubectl, SYSTEM)}") from error

    def _delete_namespace(self) -> None:
        arguments = ("delete", "namespace", NAMESPACE, "--ignore-not-found", f"--timeout={REMOVED}s")
        self._place.kubectl.run(*arguments, timeout=REMOVED + 10)

    def _apply(self) -> None:
        run = self._plan.run
        if run.changed:
            self._place.kubectl.apply([run.manifest], "-n", NAMESPACE)
        else:
            self._place.kubectl.run("apply", "-n", NAMESPACE, "-f", str(run.path))

    def _break_and_heal(self, watch: Watch, half: Sample) -> tuple[str, float]:
        """Kills the unit with the most hosts and waits for its return; its name and its time of death."""
        victim = max(half.units, key=lambda unit: (len(half.pods_of(unit)), unit))
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

    def _helm(self, *arguments: str) -> None:
        command = [str(self._place.helm), *arguments, "--namespace", SYSTEM]
        kubectl = self._place.kubectl
        command += [f"--kubeconfig={kubectl.kubeconfig}"] if kubectl.kubeconfig else []
        command += [f"--kube-context={kubectl.context}"] if kubectl.context else []
        limit = OPERATOR_READY + 30
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"helm {arguments[0]} took longer than {limit} s") from error
        if done.returncode != 0:
            # Before its one line of error helm tells of every watch that it tried again.
            words = done.stderr[done.stderr.rfind("Error:") :].strip() or done.stdout.strip()
            raise CommandError(f"helm {arguments[0]} failed: {words}")


def _image(value: str, image: str | None) -> Sequence[str]:
    if image is None:
        return ()
    repository, _, tag = image.rpartition(":")
    return (f"--set-string={value}.repository={repository}", f"--set-string={value}.tag={tag}")


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
