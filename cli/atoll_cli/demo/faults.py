"""The demo's faults. Each is caused, observed until it is healed, and recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence

from atoll_cli.demo.cluster import DemoCluster
from atoll_cli.demo.console import Console
from atoll_cli.demo.healing import HEALED, Healing, largest
from atoll_cli.demo.verdict import Fault
from atoll_cli.demo.watch import Watch
from atoll_cli.errors import CommandError
from atoll_cli.views import PodView, Sample
from atoll_local.faults import kill_pods
from atoll_local.link import Link, shape

CUT_SECONDS = 60
MERGED_STEPS = 50
"""A unit counts as merged again if its last merge is fewer global steps ago: two intervals of the sample."""


class Faults(Healing):
    """Breaks parts of a watched run on a cluster."""

    def __init__(self, cluster: DemoCluster, watch: Watch, console: Console) -> None:
        super().__init__(watch, console, self._end)
        self._cluster = cluster

    def delete_pod(self) -> None:
        """Deletes one pod of the largest unit; returns when the unit learns again."""
        before = self._watch.look()
        unit = largest(before)
        pod = before.pods_of(unit)[-1]
        self._console.say(f"kubectl delete pod {pod.name}")
        fault = Fault(kind="pod", victim=pod.name, unit=unit, at=time.time())
        self._cluster.kubectl.run("delete", "pod", "--wait=false", pod.name)
        self._until_healed(fault, before)

    def switch_off_node(self) -> tuple[Fault, Sample]:
        """Cuts the power of the node of the smallest unit. `switch_on_node` restores it."""
        before = self._watch.look()
        unit = smallest(before)
        node = before.pods_of(unit)[0].node
        self._console.say(f"switching off the node {node}, on which {unit} runs")
        fault = Fault(kind="node", victim=node, unit=unit, at=time.time())
        self._cluster.local.machine(node).stop()
        return fault, before

    def switch_on_node(self, fault: Fault, before: Sample) -> None:
        """Waits until the operator has given the node up, and switches it on. Returns when the unit learns again."""
        incarnation = before.units[fault.unit].incarnation
        self._watch.until(
            f"{fault.unit} leaving the lost node",
            lambda sample: sample.units[fault.unit].incarnation > incarnation,
            HEALED,
        )
        self._console.say(f"switching on the node {fault.victim}")
        self._cluster.local.machine(fault.victim).start()
        self._until_healed(fault, before)

    def cut_link(self) -> None:
        """Cuts the link of the node of the unit that is neither the smallest nor the largest, for `CUT_SECONDS`.
        Returns when the unit is merged again."""
        before = self._watch.look()
        [unit] = before.units.keys() - {smallest(before), largest(before)}
        node = before.pods_of(unit)[0].node
        self._console.say(f"cutting the link of the node {node}, on which {unit} runs, for {CUT_SECONDS} s")
        fault = Fault(kind="link", victim=node, unit=unit, at=time.time())
        machine = self._cluster.local.machine(node)
        shape(machine, Link(cut=True))
        try:
            cut = self._watch.until(
                "the end of the cut", lambda sample: sample.time >= fault.at + CUT_SECONDS, HEALED
            )
        finally:
            shape(machine, Link())
        back = self._watch.until(
            f"{unit} merged again",
            lambda sample: sample.units[unit].staleness < min(cut.units[unit].staleness, MERGED_STEPS),
            HEALED,
        )
        self._note(fault, back, f"is merged again as incarnation {back.units[unit].incarnation}")

    def kill_syncer(self) -> None:
        """Kill the syncer's processes. Return when it is back and every unit reports new steps, or the run is complete.

        A restarted syncer knows the steps of its journal. It is back within a second or two, before each unit has
        pushed again, so its first figures are those from before the kill.
        """
        before = self._watch.look()
        syncer = _syncer(before)
        self._console.say(f"killing the syncer: {syncer.name}")
        fault = Fault(kind="syncer", victim=syncer.name, at=time.time())
        self._kill([syncer])
        back = self._watch.until(
            "the syncer going on from its journal",
            lambda sample: sample.run.complete or (_resumed(sample, syncer) and _all_moved(before, sample)),
            HEALED,
        )
        self._note(fault, back, "merges again")

    def _end(self, pods: Sequence[PodView]) -> None:
        kill_pods(self._cluster.local, [pod.uid for pod in pods])


def smallest(sample: Sample) -> str:
    """The unit with the fewest hosts."""
    return min(sample.units, key=lambda unit: (len(sample.pods_of(unit)), unit))


def _syncer(sample: Sample) -> PodView:
    """Raises `CommandError` when the run has no syncer pod."""
    for pod in sample.pods.values():
        if pod.component == "syncer":
            return pod
    raise CommandError(f"the run {sample.run.name} has no syncer pod")


def _all_moved(before: Sample, now: Sample) -> bool:
    """Whether the run and each of its units have made steps since `before`."""
    return now.run.step > before.run.step and all(
        name in now.units and now.units[name].step > unit.step for name, unit in before.units.items()
    )


def _resumed(sample: Sample, before: PodView) -> bool:
    now = sample.pods.get(before.name)
    return now is not None and (now.uid != before.uid or now.container_restarts > before.container_restarts)
