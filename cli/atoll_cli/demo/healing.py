"""Kills a unit, and waits until it is healed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll_cli.demo.console import Console
from atoll_cli.demo.verdict import Fault, healed
from atoll_cli.demo.watch import Watch
from atoll_cli.views import PodView, Sample

HEALED = 600
"""Time limit in seconds. Ample on two slow cores: a heal that takes longer is broken, not slow."""


class Healing:
    """Kills units of a watched run.

    Args:
        kill: ends every process of these pods at once by SIGKILL.
    """

    def __init__(self, watch: Watch, console: Console, kill: Callable[[Sequence[PodView]], None]) -> None:
        self.seen: list[Fault] = []
        """Healed faults, in the order in which they healed."""
        self._watch, self._console, self._kill = watch, console, kill

    def kill_unit(self) -> None:
        """Kills every process of the largest unit; returns when it learns again."""
        before = self._watch.look()
        unit = largest(before)
        pods = before.pods_of(unit)
        self._console.say(f"killing {unit}: {', '.join(f'{pod.name} on {pod.node}' for pod in pods)}")
        fault = Fault(kind="unit", victim=unit, unit=unit, at=time.time())
        self._kill(pods)
        back = self._until_healed(fault, before)
        for name in sorted(set(back.units) - {unit}):
            self._console.say(
                f"{name} made {back.units[name].step - before.units[name].step} steps meanwhile"
            )

    def _until_healed(self, fault: Fault, before: Sample) -> Sample:
        incarnation = before.units[fault.unit].incarnation
        back = self._watch.until(
            f"{fault.unit} learning again", lambda sample: healed(sample, fault.unit, incarnation), HEALED
        )
        unit = back.units[fault.unit]
        kept = {pod.uid for pod in back.pods_of(fault.unit)} & {pod.uid for pod in before.pods_of(fault.unit)}
        self._note(
            fault,
            back,
            f"is back as incarnation {unit.incarnation}, {len(kept)} of its pods kept, "
            f"seeded from global step {unit.seeded_step}",
        )
        return back

    def _note(self, fault: Fault, back: Sample, words: str) -> None:
        self.seen.append(replace(fault, healed_at=back.time))
        self._console.say(
            f"{fault.unit or fault.victim} {words}, {back.time - fault.at:.1f} s after the fault"
        )


def largest(sample: Sample) -> str:
    """The unit with the most hosts."""
    return max(sample.units, key=lambda unit: (len(sample.pods_of(unit)), unit))
