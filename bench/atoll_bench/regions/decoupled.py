"""Atoll in the regions: the syncer at its site, a learner process in each region."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from atoll_bench.regions.setting import Setting
from atoll_bench.regions.wan import SITE, Wan
from atoll_cli.errors import CommandError
from atoll_local.process import Startable
from atoll_operator.certificates.authority import Authority
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_RUN_FILE,
    ENV_TLS_DIR,
    ENV_UNIT,
    SyncerStatus,
    UnitContract,
    dump,
    identity,
)

START_SECONDS = 300.0
"""For the syncer, and for all learners' first steps."""
SILENCE_SECONDS = 60.0
"""A run whose clock stands for so long is broken."""
POLL_SECONDS = 0.25
ANSWER_SECONDS = 5.0
END_SECONDS = 20.0

Watch = Callable[[SyncerStatus], None]
"""Called with each status while the run trains."""


class Decoupled(Startable):
    """One run. Use as a context manager: its processes end with it."""

    def __init__(
        self, wan: Wan, folder: Path, setting: Setting, seed: int, environment: Mapping[str, str]
    ) -> None:
        self.bucket = f"file://{folder}/bucket/run"
        self._wan, self._folder, self._environment = wan, folder, environment
        self._run, self._batch = setting.run(seed, self.bucket, SITE), setting.batch
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when every learner has made its first step, and so has compiled its programs.

        Raises:
            CommandError: a process ended, or was not there in time.
        """
        self._folder.mkdir(parents=True)
        (self._folder / "run.json").write_text(dump(self._run))
        self._certify()
        self._begin(self._wan.site.name, "syncer", {ENV_JOURNAL_DIR: str(self._folder / "volume")})
        self._until("the syncer runs", lambda status: status.phase == "Running")
        for stream, region in enumerate(self._wan.regions):
            unit = UnitContract(
                unit=region.name, incarnation=1, host=0, hosts=1, coordinator="localhost:1", batch=self._batch,
                stream=stream, streams=len(self._wan.regions),
            )  # fmt: skip
            self._begin(region.name, "learner", {ENV_UNIT: dump(unit)})
        self._until("every learner steps", lambda status: len(_first_steps(status)) == len(self._wan.regions))

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def train(self, watch: Watch) -> tuple[float, SyncerStatus]:
        """Until the run's target: Unix seconds of the earliest first step, and the status at the target.

        Raises:
            CommandError: a process ended, or the clock stands.
        """
        step, since = -1, time.monotonic()
        while True:
            status = self._look()
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
        """Waits until the final checkpoint stands. Raises `CommandError`."""
        return self._until("the run is finished", lambda status: status.phase == "Finished")

    def _until(self, what: str, reached: Callable[[SyncerStatus], bool]) -> SyncerStatus:
        deadline = time.monotonic() + START_SECONDS
        while True:
            status = self._look()
            if status is not None and reached(status):
                return status
            if time.monotonic() > deadline or (status is not None and status.phase == "Finished"):
                raise CommandError(f"not within {START_SECONDS:g} s, nor before the end of the run: {what}")
            time.sleep(POLL_SECONDS)

    def _look(self) -> SyncerStatus | None:
        """The run's status; None where the syncer does not answer. Raises `CommandError` if a process has failed."""
        for name, process in self._processes.items():
            if process.poll():
                log = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()
                raise CommandError(f"{name} ended with status {process.returncode}: {' / '.join(log[-3:])}")
        url = f"https://{self._wan.site.address}:{self._run.shards[0].status_port}/status"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS, context=self._context) as answer:
                return SyncerStatus.model_validate_json(answer.read())
        except OSError:
            return None

    def _begin(self, name: str, program: str, own: Mapping[str, str]) -> None:
        place = self._wan.site if name == SITE else self._wan.places[name]
        told = {ENV_RUN_FILE: str(self._folder / "run.json"), ENV_TLS_DIR: str(self._folder / name), **own}
        self._processes[name] = place.run(
            [sys.executable, "-m", f"atoll_runtime.{program}"],
            self._folder / f"{name}.log",
            {**self._environment, **told, "TMPDIR": str(self._folder)},
        )

    def _certify(self) -> None:
        """A certificate for each process; that of the syncer is for its site's name."""
        run, now = self._run, datetime.datetime.now(datetime.UTC)
        authority = Authority.new(run.name, now)
        uris = {SITE: identity(run.namespace, run.name, "syncer", run.name)}
        uris |= {
            region.name: identity(run.namespace, run.name, "unit", region.name)
            for region in self._wan.regions
        }
        for name, uri in uris.items():
            pair = authority.issue(name, uri, [name], now)
            folder = self._folder / name
            folder.mkdir()
            authority.write(folder, pair)
        self._context = ssl.create_default_context(cafile=str(self._folder / SITE / "ca.crt"))
        self._context.load_cert_chain(self._folder / SITE / "tls.crt", self._folder / SITE / "tls.key")
        self._context.check_hostname = False  # it is asked by its address; the authority is of this run alone


def begun(status: SyncerStatus) -> float:
    """Unix seconds at which the earliest first step had ended."""
    return min(_first_steps(status))


def _first_steps(status: SyncerStatus) -> list[float]:
    return [unit.beginning.stepped for unit in status.units.values() if unit.beginning is not None]
