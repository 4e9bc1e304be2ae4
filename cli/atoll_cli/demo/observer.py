"""Samples of a run on a cluster."""

from __future__ import annotations

import time
from dataclasses import replace

from atoll_cli.fresh import refreshed
from atoll_cli.kubectl import Kubectl, KubectlError
from atoll_cli.views import Sample, sample_of

AGAIN = 1.0
"""Seconds until the API server is asked again."""
SILENCE = 60.0
"""Seconds that the API server may fail to answer before that is an error."""


class Observer:
    """With the units' figures as the syncer counts them now: those in a status may be half a minute old."""

    def __init__(self, kubectl: Kubectl, namespace: str, run: str) -> None:
        self._kubectl, self._namespace, self._run = kubectl, namespace, run
        self._steps: dict[str, int] = {}

    def __call__(self) -> Sample:
        """Raises `KubectlError`: the API server did not answer for `SILENCE` seconds."""
        deadline = time.monotonic() + SILENCE
        while True:
            try:
                listing = self._kubectl.get(
                    "trainingruns,learnerunits,pods", "-n", self._namespace, timeout=15
                )
                return self._fresh(sample_of(self._run, listing["items"], time.time()))
            except KubectlError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN)

    def _fresh(self, sample: Sample) -> Sample:
        shards = sum(pod.component == "syncer" for pod in sample.pods.values())
        fresh = refreshed(self._kubectl, self._namespace, shards, sample)
        # A syncer that does not answer now, or is back from its journal, takes nobody's steps away.
        self._steps |= {name: max(unit.step, self._steps.get(name, 0)) for name, unit in fresh.units.items()}
        units = {name: replace(unit, step=self._steps[name]) for name, unit in fresh.units.items()}
        # The clock is that of the status, which falls back to nothing older while a syncer does not answer.
        return replace(fresh, run=sample.run, units=units)
