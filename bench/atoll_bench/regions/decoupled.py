"""Atoll in the regions: the syncer at its site, a learner process in each region."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from atoll_bench.regions.setting import Setting
from atoll_bench.regions.wan import SITE, Wan
from atoll_bench.run import POLL_SECONDS, Run
from atoll_cli.errors import CommandError
from atoll_local.process import Startable
from atoll_runtime.contract import ENV_UNIT, SyncerStatus, UnitContract, dump

SILENCE_SECONDS = 60.0
"""A run is broken if its clock stands still for this many seconds."""

Watch = Callable[[SyncerStatus], None]
"""Called with each status while the run trains."""


class Decoupled(Startable):
    """One run. Use as a context manager, which ends its processes."""

    def __init__(
        self, wan: Wan, folder: Path, setting: Setting, seed: int, environment: Mapping[str, str]
    ) -> None:
        self.bucket = f"file://{folder}/bucket/run"
        self._wan, self._environment, self._batch = wan, environment, setting.batch
        self._units = [region.name for region in wan.regions]
        contract = setting.run(seed, self.bucket, SITE)
        self._run = Run(contract, folder, self._units, wan.site.address)

    def start(self) -> None:
        """Returns when every learner has made its first step, which means that it has compiled its programs.

        Raises:
            CommandError: a process ended, or did not start in time.
        """
        self._run.start_syncer(self._wan.site.run, self._environment)
        for stream, name in enumerate(self._units):
            unit = UnitContract(
                unit=name, incarnation=1, host=0, hosts=1, coordinator="localhost:1", batch=self._batch,
                stream=stream, streams=len(self._units),
            )  # fmt: skip
            environment = {**self._environment, ENV_UNIT: dump(unit)}
            self._run.start(name, "learner", self._wan.places[name].run, environment)
        self._run.until("every learner steps", lambda status: len(_first_steps(status)) == len(self._units))

    def stop(self) -> None:
        self._run.close()

    def train(self, watch: Watch) -> tuple[float, SyncerStatus]:
        """Waits for the run's target. Returns Unix seconds of the earliest first step, and the status at the target.

        Raises:
            CommandError: a process ended, or the clock stands still.
        """
        step, since = -1, time.monotonic()
        while True:
            status = self._run.look()
            if status is not None:
                watch(status)
                if status.phase in ("Finishing", "Finished"):
                    return begun(status), status
                if status.global_step > step:
                    step, since = status.global_step, time.monotonic()
            if time.monotonic() > since + SILENCE_SECONDS:
                told = "it does not answer" if status is None else status.message
                raise CommandError(f"the clock stands at {step} for {SILENCE_SECONDS:g} s: {told}")
            time.sleep(POLL_SECONDS)

    def finish(self) -> SyncerStatus:
        """Waits until the final checkpoint is complete. Raises `CommandError`."""
        return self._run.until("the run is finished", lambda status: status.phase == "Finished")


def begun(status: SyncerStatus) -> float:
    """Unix seconds at which the earliest first step ended."""
    return min(_first_steps(status))


def _first_steps(status: SyncerStatus) -> list[float]:
    return [unit.beginning.stepped for unit in status.units.values() if unit.beginning is not None]
