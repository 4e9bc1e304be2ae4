"""Polls a run, shows it, records it, and waits with deadlines. Shows why something did not come up: conditions, last
events, pods, last log lines, as kubectl prints them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from atoll_cli.demo.console import Console
from atoll_cli.errors import CommandError
from atoll_cli.fresh import refreshed
from atoll_cli.kubectl import Kubectl
from atoll_cli.polling import patiently
from atoll_cli.text import headline, held_out, seconds
from atoll_cli.views import Sample, sample_of
from atoll_operator.api.group import LABEL_RUN

SILENCE = 60.0
"""Seconds that the API server may fail to answer before that is an error."""
LINES = 40
"""Last lines of each answer that are kept."""
LOG_LINES = 8
"""Last log lines of each pod."""
CONDITIONS = (
    "jsonpath={range .items[*]}{.kind} {.metadata.name}: {range .status.conditions[*]}"
    '{.type}={.status} {.reason} ({.message}); {end}{"\\n"}{end}'
)


class Observer:
    """Takes samples of a run on a cluster, with the syncer's current figures. A status may be half a minute old."""

    def __init__(self, kubectl: Kubectl, run: str, tell: Callable[[str], None]) -> None:
        self._kubectl, self._run, self._tell = kubectl, run, tell
        self._steps: dict[str, int] = {}

    def __call__(self) -> Sample:
        """Raises `KubectlError`: the API server did not answer for `SILENCE` seconds."""
        return patiently(self._look, self._tell, SILENCE)

    def _look(self) -> Sample:
        listing = self._kubectl.get("trainingruns,learnerunits,pods", timeout=15)
        sample = sample_of(self._run, listing["items"], time.time())
        shards = sum(pod.component == "syncer" for pod in sample.pods.values())
        fresh = refreshed(self._kubectl, shards, sample)
        # Steps do not fall when a syncer does not answer, or has just resumed from its journal.
        self._steps |= {name: max(unit.step, self._steps.get(name, 0)) for name, unit in fresh.units.items()}
        units = {name: replace(unit, step=self._steps[name]) for name, unit in fresh.units.items()}
        # The run's figures are the status's, which do not fall back while a syncer does not answer.
        return replace(fresh, run=sample.run, units=units)


class Watch:
    """Takes samples of a run and keeps all of them.

    Args:
        observe: takes a sample.
        diagnose: returns what a person would look at first if something did not happen.
        record: a file that gets each sample as a JSON line.
        interval: seconds between two looks.
        patient: a time-out begins again whenever the live line changes.
    """

    def __init__(
        self,
        observe: Callable[[], Sample],
        diagnose: Callable[[], str],
        console: Console,
        record: Path | None = None,
        *,
        interval: float = 1.0,
        patient: bool = False,
    ) -> None:
        self.samples: list[Sample] = []
        self._observe, self._diagnose, self._console, self._record = observe, diagnose, console, record
        self._interval, self._patient = interval, patient

    def look(self) -> Sample:
        """Take one more sample. Raises what `observe` raises."""
        sample = self._observe()
        self.samples.append(sample)
        if self._record:
            with self._record.open("a") as file:
                file.write(json.dumps(asdict(sample)) + "\n")
        return sample

    def until(self, what: str, reached: Callable[[Sample], bool], timeout: float) -> Sample:
        """Take samples, and return the first for which `reached` holds. Raises `CommandError`: not within `timeout`
        seconds, or the run failed (both with a diagnosis) or was complete."""
        deadline, last = time.monotonic() + timeout, ""
        while True:
            sample = self.look()
            line = _line(sample)
            self._console.live(line)
            if reached(sample):
                return sample
            if sample.run.failed:
                raise CommandError(f"{what}: the run failed: {sample.run.message}\n{self._diagnose()}")
            if sample.run.complete:
                raise CommandError(f"the run was complete before this was seen: {what}")
            if self._patient and line != last:
                deadline, last = time.monotonic() + timeout, line
            if time.monotonic() > deadline:
                raise CommandError(f"{what}: not within {seconds(timeout)}\n{self._diagnose()}")
            time.sleep(self._interval)


def all_learning(sample: Sample, units: int) -> bool:
    """Whether there are `units` units and each of them is being merged."""
    return len(sample.units) == units and all(unit.learning for unit in sample.units.values())


def _line(sample: Sample) -> str:
    states = [
        f"{unit.name}#{unit.incarnation}:{unit.step}" + ("" if unit.learning else f" ({unit.phase})")
        for unit in sorted(sample.units.values(), key=lambda unit: unit.name)
    ]
    measured = [] if sample.run.held_out is None else [held_out(sample.run.held_out)]
    return " | ".join([headline(sample.run), *measured, *states])


def diagnose(kubectl: Kubectl, run: str) -> str:
    """Return what a person would look at first. Never raises, because something is already broken."""
    pods = ("-l", f"{LABEL_RUN}={run}")
    return _told(
        kubectl,
        {
            "conditions": ("get", "trainingruns,learnerunits", "-o", CONDITIONS),
            "last events": ("get", "events", "--sort-by=.lastTimestamp"),
            "pods": ("get", "pods", "-o", "wide", *pods),
            "logs": ("logs", *pods, "--prefix", "--ignore-errors", f"--tail={LOG_LINES}"),
        },
    )


def operator_diagnosis(kubectl: Kubectl) -> str:
    """The operator's pods and the end of its log; never raises."""
    log = ("logs", "deployment/atoll-operator", f"--tail={LOG_LINES}", "--pod-running-timeout=2s")
    return _told(kubectl, {"operator": ("get", "pods", "-o", "wide"), "its log": log})


def _told(kubectl: Kubectl, questions: Mapping[str, tuple[str, ...]]) -> str:
    lines: list[str] = []
    for title, words in questions.items():
        try:
            told = kubectl.run(*words, timeout=15).splitlines()[-LINES:]
        except CommandError as error:
            told = [str(error)]
        lines += [f"{title}:", *(f"  {line}" for line in told or ["none"])]
    return "\n".join(lines)
