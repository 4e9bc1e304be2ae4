"""A run of one unit on this machine: contract, certificates, data, bucket, and the syncer as a process."""

from __future__ import annotations

import datetime
import os
import signal
import ssl
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from atoll_bench import cores
from atoll_cli.errors import CommandError
from atoll_local.controlplane import free_port
from atoll_operator.certificates.authority import Authority
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_RUN_FILE,
    ENV_SHARD,
    ENV_TLS_DIR,
    CheckpointSpec,
    DataSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    RunContract,
    SyncerAddress,
    SyncerStatus,
    TargetSpec,
    dump,
    identity,
)
from atoll_runtime.data import write_text
from atoll_runtime.transport.tls import Tls

UNIT = "unit"
PACKAGES = ("json", "email", "http", "asyncio", "logging", "unittest")
"""Packages of the standard library whose text is trained on."""
START_TIMEOUT = 60.0
END_TIMEOUT = 20.0


class Syncer:
    """`python -m atoll_runtime.syncer` with its journal in `folder`; gRPC and mTLS on the loopback."""

    def __init__(self, folder: Path, model: ModelSpec, length: int, interval: int) -> None:
        """
        Args:
            length: tokens of a sequence.
            interval: global steps between two cuts.

        Raises:
            CommandError: no status within START_TIMEOUT.
        """
        self.folder = folder
        self.run = _contract(folder, model, length, interval)
        names = {"syncer": self.run.name, "unit": UNIT}
        now = datetime.datetime.now(datetime.UTC)
        authority = Authority.new(self.run.name, now)
        for role, name in names.items():
            uri = identity(self.run.namespace, self.run.name, "unit" if role == "unit" else "syncer", name)
            pair = authority.issue(name, uri, ["localhost"], now)
            place = folder / role
            place.mkdir()
            authority.write(place, pair)
        self.tls = Tls.read(folder / "unit")
        """The unit's identity."""
        self._context = ssl.create_default_context(cafile=str(folder / "syncer" / "ca.crt"))
        self._context.load_cert_chain(folder / "syncer" / "tls.crt", folder / "syncer" / "tls.key")
        (folder / "run.json").write_text(dump(self.run))
        environment = os.environ | {
            ENV_RUN_FILE: str(folder / "run.json"),
            ENV_TLS_DIR: str(folder / "syncer"),
            ENV_JOURNAL_DIR: str(folder / "volume"),
            ENV_SHARD: "0",
        }
        with (folder / "syncer.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "atoll_runtime.syncer"], env=environment, stdout=log, stderr=log
            )

    def __enter__(self) -> Syncer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def pin(self, wanted: Iterable[int]) -> None:
        """Pins it to these cores, with all its threads."""
        cores.pin(self._process.pid, wanted)

    @property
    def used(self) -> float:
        """Its CPU seconds so far."""
        return cores.used(self._process.pid)

    def await_running(self) -> None:
        """Waits until it accepts learners.

        Raises:
            CommandError: it ended, or did not within START_TIMEOUT.
        """
        deadline, phase = time.monotonic() + START_TIMEOUT, "Starting"
        while phase == "Starting":
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CommandError(f"the syncer did not start: {self._log()}")
            time.sleep(0.1)
            try:
                phase = self.status().phase
            except OSError:
                continue  # it does not listen yet

    def status(self) -> SyncerStatus:
        """Its status. Raises `OSError` if it does not answer."""
        url = f"https://localhost:{self.run.shards[0].status_port}/status"
        with urllib.request.urlopen(url, timeout=5, context=self._context) as answer:
            return SyncerStatus.model_validate_json(answer.read())

    def _log(self) -> str:
        lines = (self.folder / "syncer.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "its log is empty"


def _contract(folder: Path, model: ModelSpec, length: int, interval: int) -> RunContract:
    library = Path(sysconfig.get_path("stdlib"))
    texts = sorted(path for package in PACKAGES for path in (library / package).rglob("*.py"))
    write_text(f"file://{folder}/data", [(str(path.relative_to(library)), path) for path in texts])
    port, status, health, transfer = (free_port() for _ in range(4))
    address = SyncerAddress(
        host="localhost", port=port, status_port=status, health_port=health, transfer_port=transfer
    )
    return RunContract(
        name="bench",
        namespace="default",
        uid="bench",
        model=model,
        data=DataSpec(uri=f"file://{folder}/data", sequence_length=length),
        inner=InnerSpec(),
        outer=OuterSpec(),
        quorum=QuorumSpec(),
        target=TargetSpec(global_steps=1_000_000),
        checkpoint=CheckpointSpec(uri=f"file://{folder}/bucket/run", interval_steps=interval),
        shards=(address,),
    )
