"""The syncer of a run in memory. It answers the operator's polls according to the processes that run."""

from __future__ import annotations

import time
from typing import Any

from memory_accidents import POOLS
from memory_apiserver import Object
from memory_cluster import PlayedCluster

from atoll_operator.api.group import LABEL_UNIT
from atoll_operator.plan.run.evaluation import UNAVAILABLE as EVALUATOR_UNAVAILABLE
from atoll_operator.plan.run.syncer_state import UNAVAILABLE as SYNCER_UNAVAILABLE
from atoll_operator.plan.run.syncer_state import CheckpointOrder
from atoll_operator.polling import EvaluatorPoller, PollFailed, SyncerPoller
from atoll_runtime import contract

HOSTS = {accelerator: hosts for kinds in POOLS.values() for accelerator, _, hosts in kinds}
"""Hosts of a slice, by accelerator."""


class PlayedSyncer:
    """Merges contributions of units with all hosts in the same incarnation."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self._server = cluster.server
        self.tick_seconds = 0.2
        """Seconds from one look at the world to the next."""
        self.finished = False
        self.step = 0
        self.saved = -1
        """Global step of the newest checkpoint."""
        self.merges = False
        """Whether a unit learns."""
        self.silent = False
        """Whether it runs but does not answer."""
        self.apart: set[tuple[str, int]] = set()
        """Units and incarnations whose hosts do not connect."""
        self.says: dict[tuple[str, int], Object] = {}
        """By unit and incarnation, fields in which its report differs from that of a unit that learns."""
        self.merged: dict[str, tuple[int, float]] = {}
        """Unit to the incarnation that learns, and since when."""
        self.known: dict[str, int] = {}
        """Unit to its newest known incarnation."""

    def say(self, uid: str) -> contract.SyncerStatus | None:
        """What the syncer of the run with this uid answers; None while it does not run."""
        runs = (run["metadata"] for run in self._server.every("TrainingRun"))
        if self.silent or not any(self._runs(f"{run['name']}-syncer-0") for run in runs if run["uid"] == uid):
            self.merges = False
            return None
        units = {}
        for unit in self._server.every("LearnerUnit"):
            name = unit["metadata"]["name"]
            hosts = unit["spec"]["slices"] * HOSTS[unit["spec"]["accelerator"]]
            alive = [pod for pod in self._server.every("Pod") if self._lives(pod)]
            pods = [pod for pod in alive if pod["metadata"]["labels"].get(LABEL_UNIT) == name]
            own = [self._cluster.incarnation(pod) for pod in pods]
            newest = max(own, default=0)
            connected = own.count(newest) == hosts and (name, newest) not in self.apart
            if newest and connected and newest >= self.known.get(name, 0):
                words = self.says.get((name, newest), {})
                learns = words.get("state", "Learning") == "Learning"
                if learns and self.merged.get(name, (0, 0.0))[0] != newest:
                    self.merged[name] = newest, time.time()
                self.known[name], since = newest, self.merged.get(name, (0, 0.0))[1]
                beginning = contract.BeginningReport(joined=since, stepped=since, compiling=0.0)
                report: Object = {
                    "incarnation": newest, "hosts": hosts, "state": "Learning", "seeded_step": 0, "step": self.step,
                    "loss": 3.5 if learns else None, "first_merge_time": since if learns else None,
                    "contributions": 1 + self.step, "beginning": beginning,
                }  # fmt: skip
                units[name] = contract.UnitReport(**(report | words))
            elif newest > max(self.known.get(name, 0) - 1, self.merged.get(name, (0, 0.0))[0]):
                self.known[name], some = newest, min(own.count(newest), hosts - 1)
                units[name] = contract.UnitReport(
                    incarnation=newest, hosts=some, state="Joining", seeded_step=0
                )
            elif name in self.known:
                known = self.known[name]
                units[name] = contract.UnitReport(incarnation=known, hosts=0, state="Gone", seeded_step=0)
        self.merges = any(unit.state == "Learning" for unit in units.values())
        saved = contract.CheckpointReport(newest_step=max(self.saved, 0), current=self.saved >= self.step)
        return contract.SyncerStatus(
            run_uid=uid, phase="Finished" if self.finished else "Running", global_step=self.step,
            target_steps=100_000, units=units, checkpoint=saved, time=time.time(),
            final_checkpoint="gs://bucket/run/final" if self.finished else "",
        )  # fmt: skip

    def _lives(self, pod: Object) -> bool:
        return pod["spec"].get("nodeName") not in self._cluster.dead

    def _runs(self, name: str) -> bool:
        pods = (pod for pod in self._server.every("Pod") if pod["metadata"]["name"] == name)
        return any(pod["status"]["phase"] == "Running" and self._lives(pod) for pod in pods)

    def evaluate(self, uid: str) -> contract.EvaluatorStatus | None:
        """What the run's evaluator answers; None while it does not run."""
        if not self._runs("r-evaluator-0"):
            return None
        figures = {"step": 50, "loss": 3.25, "tokens": 65536, "seconds": 2.5, "time": 1.7e9}
        newest = contract.EvaluationReport(split="heldout", **figures)
        return contract.EvaluatorStatus(run_uid=uid, phase="Waiting", newest=newest, evaluated=1)


def pollers(syncer: PlayedSyncer) -> dict[str, Any]:
    """The operator's pollers without the network."""

    class Heard(SyncerPoller):
        async def _fetch(self, poll: Any, session: Any) -> contract.SyncerStatus:
            if (status := syncer.say(poll.uid)) is None:
                raise PollFailed(SYNCER_UNAVAILABLE, "nobody answers")
            return status

        async def _ask(self, run: Any, wanted: CheckpointOrder, session: Any) -> CheckpointOrder:
            syncer.saved = wanted.step
            return wanted

    class Evaluated(EvaluatorPoller):
        async def _fetch(self, poll: Any, session: Any) -> contract.EvaluatorStatus:
            if (status := syncer.evaluate(poll.uid)) is None:
                raise PollFailed(EVALUATOR_UNAVAILABLE, "nobody answers")
            return status

        def _seconds(self, poll: Any) -> float:
            return syncer.tick_seconds

    return {"SyncerPoller": Heard, "EvaluatorPoller": Evaluated}
