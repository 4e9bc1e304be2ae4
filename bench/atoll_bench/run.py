"""The processes of one run outside Kubernetes: its syncer and its learners, with certificates and a status."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from atoll_cli.errors import CommandError
from atoll_local.process import spawn
from atoll_operator.certificates.authority import Authority
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_RUN_FILE,
    ENV_TLS_DIR,
    RunContract,
    SyncerStatus,
    dump,
    identity,
)

SYNCER = "syncer"
"""Name of the syncer's process and of its folder."""
START_SECONDS = 300.0
"""Time limit for the start of the syncer, and for the first steps of all learners."""
POLL_SECONDS = 0.25
ANSWER_SECONDS = 5.0
LAST_LINES = 3
"""Lines of the log of a failed process that an error shows."""


def certify(folder: Path, run: str, units: Sequence[str], *hosts: str) -> None:
    """Makes a folder with a certificate for the syncer, which is at these hosts, and one for each unit."""
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority.new(run, now)
    uris = {SYNCER: identity("default", run, "syncer", run)}
    uris |= {unit: identity("default", run, "unit", unit) for unit in units}
    for name, uri in uris.items():
        (folder / name).mkdir(parents=True)
        names = hosts if name == SYNCER else (name,)
        authority.write(folder / name, authority.issue(name, uri, names, now))


def check(processes: Mapping[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Raises `CommandError` if one of the processes, whose logs are in `folder`, has failed."""
    for name, process in processes.items():
        if process.poll():
            log = (folder / f"{name}.log").read_text(errors="replace").splitlines()
            raise CommandError(
                f"{name} ended with status {process.returncode}: {' / '.join(log[-LAST_LINES:])}"
            )


class Run:
    """One run in `folder`. `close` ends its processes."""

    def __init__(self, contract: RunContract, folder: Path, units: Sequence[str], address: str) -> None:
        """`address` is the syncer's address for this process."""
        self.contract, self.folder = contract, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        certify(folder, contract.name, units, contract.shards[0].host)
        (folder / "run.json").write_text(dump(contract))
        self._url = f"https://{address}:{contract.shards[0].status_port}/status"
        own = folder / SYNCER
        self._context = ssl.create_default_context(cafile=str(own / "ca.crt"))
        self._context.load_cert_chain(own / "tls.crt", own / "tls.key")
        # The URL may have an IP address, and the authority is only for this run.
        self._context.check_hostname = False

    def start_syncer(self, inside: Sequence[str], environment: Mapping[str, str]) -> None:
        """Returns when it accepts learners. Raises `CommandError`."""
        own = {**environment, ENV_JOURNAL_DIR: str(self.folder / "volume")}
        self.start(SYNCER, "syncer", inside, own)
        self.until("the syncer runs", lambda status: status.phase == "Running")

    def start(self, name: str, program: str, inside: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a program of `atoll_runtime` as the syncer or unit of this name. `inside` is a command that runs it in
        a network namespace, or empty."""
        told = {ENV_RUN_FILE: str(self.folder / "run.json"), ENV_TLS_DIR: str(self.folder / name)}
        own = {**environment, **told, "TMPDIR": str(self.folder)}
        command = [*inside, sys.executable, "-m", f"atoll_runtime.{program}"]
        self.processes[name] = spawn(command, self.folder / f"{name}.log", own)

    def look(self) -> SyncerStatus | None:
        """The run's status; None if the syncer does not answer. Raises `CommandError` if a process has failed."""
        check(self.processes, self.folder)
        try:
            with urllib.request.urlopen(self._url, timeout=ANSWER_SECONDS, context=self._context) as answer:
                return SyncerStatus.read(answer.read())
        except OSError:
            return None

    def until(self, what: str, reached: Callable[[SyncerStatus], bool]) -> SyncerStatus:
        """Waits for a status for which `reached` holds and returns it. Raises `CommandError`."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            status = self.look()
            if status is not None and reached(status):
                return status
            if time.monotonic() > deadline or (status is not None and status.phase == "Finished"):
                raise CommandError(f"not within {START_SECONDS:g} s, nor before the end of the run: {what}")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
