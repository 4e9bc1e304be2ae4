"""Looks at the run again and again, shows it, records it, and waits with deadlines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from atoll_cli.demo.console import Console
from atoll_cli.demo.diagnosis import diagnose
from atoll_cli.errors import CommandError
from atoll_cli.fresh import read_metrics
from atoll_cli.kubectl import Kubectl, KubectlError
from atoll_cli.text import headline, held_out, seconds
from atoll_cli.views import Sample, sample_of

INTERVAL = 1.0
"""Seconds between two looks."""
SILENCE = 60.0
"""Seconds that the API server may fail to answer before that is an error."""


class Watch:
    """Every sample of a run since the watch began."""

    def __init__(
        self, kubectl: Kubectl, namespace: str, run: str, console: Console, record: Path | None = None
    ) -> None:
        self.samples: list[Sample] = []
        self._kubectl = kubectl
        self._namespace = namespace
        self._run = run
        self._console = console
        self._record = record
        self._steps: dict[str, int] = {}

    def look(self) -> Sample:
        """One sample more.

        Raises:
            KubectlError: the API server did not answer for `SILENCE` seconds.
        """
        deadline = time.monotonic() + SILENCE
        while True:
            try:
                listing = self._kubectl.get(
                    "trainingruns,learnerunits,pods", "-n", self._namespace, timeout=15
                )
                break
            except KubectlError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(INTERVAL)
        sample = self._with_steps(sample_of(self._run, listing["items"], time.time()))
        self.samples.append(sample)
        if self._record:
            with self._record.open("a") as file:
                file.write(json.dumps(sample.record()) + "\n")
        return sample

    def _with_steps(self, sample: Sample) -> Sample:
        """With the units' steps as the syncer counts them: those in a status may be half a minute old."""
        for pod in sample.pods.values():
            if pod.component == "syncer" and pod.phase == "Running":
                figures = read_metrics(self._kubectl, self._namespace, pod.name) or {}
                for (name, unit), value in figures.items():
                    if name == "unit_step":
                        self._steps[unit] = max(self._steps.get(unit, 0), int(value))
        units = {
            name: replace(unit, step=max(unit.step, self._steps.get(name, 0)))
            for name, unit in sample.units.items()
        }
        return replace(sample, units=units)

    def until(self, what: str, reached: Callable[[Sample], bool], timeout: float) -> Sample:
        """The first sample for which `reached` holds.

        Raises:
            CommandError: not within `timeout` seconds, or the run failed; the message has a diagnosis.
        """
        deadline = time.monotonic() + timeout
        while True:
            sample = self.look()
            self._console.live(_line(sample))
            if reached(sample):
                return sample
            if sample.run.failed:
                raise CommandError(f"the run failed: {sample.run.message}\n{self._diagnosis()}")
            if time.monotonic() > deadline:
                raise CommandError(f"{what}: not within {seconds(timeout)}\n{self._diagnosis()}")
            time.sleep(INTERVAL)

    def _diagnosis(self) -> str:
        return diagnose(self._kubectl, self._namespace, self._run)


def _line(sample: Sample) -> str:
    states = [
        f"{unit.name}#{unit.incarnation}:{unit.step}" + ("" if unit.learning else f" ({unit.phase})")
        for unit in sorted(sample.units.values(), key=lambda unit: unit.name)
    ]
    measured = [] if sample.run.held_out is None else [held_out(sample.run.held_out)]
    return " | ".join([headline(sample.run), *measured, *states])
