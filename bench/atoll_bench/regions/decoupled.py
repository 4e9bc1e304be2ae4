"""Atoll in the regions: the syncer at its site, a learner process in each region."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from atoll_bench.regions.setting import Setting
from atoll_bench.regions.wan import SITE, Wan
from atoll_bench.run import POLL_SECONDS, Run
from atoll_cli.errors import CommandError
from atoll_runtime.contract import ENV_UNIT, LinkReport, SyncerStatus, dump
from atoll_runtime.simulate.blank import unit_contract

SILENCE_SECONDS = 60.0
"""A run is broken if its clock stands still for this many seconds."""


@contextmanager
def decoupled(
    wan: Wan, folder: Path, setting: Setting, seed: int, environment: Mapping[str, str]
) -> Iterator[Run]:
    """Starts a run. Its processes end with the context. Every learner has made its first step, which means that it has
    compiled its programs. Raises `CommandError` if a process ended, or did not start in time."""
    units = [region.name for region in wan.regions]
    contract = setting.run(seed, f"file://{folder}/bucket/run", SITE)
    with closing(Run(contract, folder, units, wan.site.address)) as run:
        run.start_syncer(wan.site.inside, environment)
        for stream, name in enumerate(units):
            unit = unit_contract(name, batch=setting.batch, stream=stream, streams=len(units))
            run.start(name, "learner", wan.places[name].inside, {**environment, ENV_UNIT: dump(unit)})
        run.until("every learner steps", lambda status: len(_first_steps(status)) == len(units))
        yield run


def train(run: Run) -> Iterator[SyncerStatus]:
    """Yields each status until the run's target. The last one has the last link that each unit told while it was
    connected: some have left by then. Raises `CommandError` if a process ended, or the clock stands still."""
    step, since = -1, time.monotonic()
    links: dict[str, LinkReport] = {}
    while True:
        status = run.look()
        if status is not None:
            links |= {name: unit.link for name, unit in status.units.items() if unit.hosts}
            if status.phase in ("Finishing", "Finished"):
                told = {
                    name: unit.model_copy(update={"link": links.get(name, unit.link)})
                    for name, unit in status.units.items()
                }
                yield status.model_copy(update={"units": told})
                return
            yield status
            if status.global_step > step:
                step, since = status.global_step, time.monotonic()
        if time.monotonic() > since + SILENCE_SECONDS:
            said = "it does not answer" if status is None else status.message
            raise CommandError(f"the clock stands at {step} for {SILENCE_SECONDS:g} s: {said}")
        time.sleep(POLL_SECONDS)


def begun(status: SyncerStatus) -> float:
    """Unix seconds at which the earliest first step ended."""
    return min(_first_steps(status))


def _first_steps(status: SyncerStatus) -> list[float]:
    return [unit.beginning.stepped for unit in status.units.values() if unit.beginning is not None]
