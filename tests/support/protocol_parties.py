"""Parts that the protocol's tests share: an authority, run contracts, units that learn in numpy, and processes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held_ports import held_ports

from atoll_operator.certificates.authority import Authority
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_RUN_FILE,
    ENV_SHARD,
    ENV_TLS_DIR,
    CheckpointSpec,
    Dimensions,
    ModelSpec,
    OuterSpec,
    RunContract,
    SyncerAddress,
    SyncerStatus,
    TargetSpec,
    dump,
    identity,
)
from atoll_runtime.interfaces import Network
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.start import Start
from atoll_runtime.model import describe, initial
from atoll_runtime.protocol.fragments import build_layout, part_bounds
from atoll_runtime.protocol.identifiers import NOTHING
from atoll_runtime.simulate.blank import BlankIsland, run_contract, unit_contract, whole_body
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import Stop
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.tls import Tls

ANSWER_SECONDS = 20.0
PARTING_SECONDS = 60.0
"""Bounds for a machine with other load, like that of `eventually`."""


def eventually(condition: Callable[[], Any], seconds: float = 50.0) -> Any:
    """Return the first true value of `condition`. Fail after `seconds`, a bound for a machine with other load.

    A condition that asks another process is checked less often, because each check takes time of both processes.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if value := condition():
            return value
        answered = time.monotonic()
        if answered > deadline:
            pytest.fail(f"not within {seconds} s: {condition}")
        time.sleep(min(max(0.01, 8 * (answered - asked)), 0.2))


async def until(condition: Callable[[], Any]) -> Any:
    """The same on an event loop."""
    async with asyncio.timeout(PARTING_SECONDS):
        while not (found := condition()):
            await asyncio.sleep(0.005)
    return found


@pytest.fixture(name="eventually", scope="session")
def eventually_fixture() -> Callable[..., Any]:
    return eventually


@pytest.fixture(name="free_ports")
def free_ports_fixture() -> Iterator[Callable[[int], list[int]]]:
    """Ports that only the test uses until its end."""
    with contextlib.ExitStack() as held:
        yield lambda count: held.enter_context(held_ports(count))


class Certificates:
    """Folders with certificates of one authority, each with ca.crt, tls.crt and tls.key."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._now = folder / name, datetime.datetime.now(datetime.UTC)
        self._authority = Authority.new(name, self._now)
        self._issued: set[Path] = set()

    def issue(self, common_name: str, uri: str) -> Path:
        """Issue a certificate for localhost, the host `common_name` and `uri`. A second call returns the same one,
        because a process may be reading it."""
        folder = self._folder / common_name
        if folder not in self._issued:
            self._issued.add(folder)
            folder.mkdir(parents=True, exist_ok=True)
            hosts = ["localhost", common_name]
            self._authority.write(folder, self._authority.issue(common_name, uri, hosts, self._now))
        return folder


@pytest.fixture(name="authority")
def authority_fixture(tmp_path: Path) -> Callable[[str], Certificates]:
    return lambda name: Certificates(tmp_path / "certificates", name)


@pytest.fixture(name="certificate")
def certificate_fixture(authority: Callable[[str], Certificates]) -> Callable[[str], Path]:
    """The folder of the certificate of a member of the run `walk`: syncer, evaluator, operator, or the unit's name."""
    ca = authority("walk")
    roles = {"syncer": "walk-syncer", "evaluator": "walk-evaluator", "operator": "operator"}
    return lambda name: ca.issue(
        name, identity("default", "walk", name if name in roles else "unit", roles.get(name, name))
    )


def networks(run: RunContract, folder: Path) -> list[TlsNetwork]:
    """Networks to every shard, with the certificate in `folder`."""
    return [TlsNetwork(shard, Tls(folder)) for shard in run.shards]


@pytest.fixture(name="make_run")
def make_run_fixture(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Callable[..., RunContract]:
    """A run of a tiny model on this machine in `shards` shards. Other keywords replace sections."""

    def make(shards: int = 1, **sections: Any) -> RunContract:
        ports = free_ports(4 * shards)
        defaults: dict[str, Any] = {
            "name": "walk",
            "uid": "uid-of-walk",
            "model": ModelSpec(
                dimensions=Dimensions(layers=4, width=16, heads=2, kv_heads=1, hidden=32, vocabulary=256)
            ),
            "outer": OuterSpec(fragments=4, interval=4, overlap=2, learning_rate=1.0, momentum=0.0),
            "target": TargetSpec(global_steps=60),
            "checkpoint": CheckpointSpec(uri=f"file://{tmp_path}/bucket", interval_steps=20, keep=2),
            "shards": tuple(
                SyncerAddress(
                    host="localhost",
                    port=ports[i],
                    status_port=ports[i + 1],
                    health_port=ports[i + 2],
                    transfer_port=ports[i + 3],
                )
                for i in range(0, 4 * shards, 4)
            ),
        }
        return run_contract(**(defaults | sections))

    return make


@dataclass(eq=False)
class NumpyUnit(BlankIsland):
    """A unit of one host: the training loop and client of the pods, in a thread. A step moves its weights a little
    towards a target. It stands for `Inner`, `Fragments`, `Agreement` and what else the loop needs."""

    run: RunContract
    name: str
    network: Network | Sequence[Network]
    incarnation: int = 1
    target: float = 1.0
    step_seconds: float = 0.01
    tokens: int = 100
    until: float = math.inf
    """When the unit has received this version, it makes no more steps until the test changes this value."""
    contributed: int = 0
    cursor: int = 0

    def __post_init__(self) -> None:
        shards = len(self.run.shards)
        self.layout = build_layout(describe(self.run.model), self.run.outer.fragments, shards)
        networks = self.network if isinstance(self.network, Sequence) else [self.network]
        self.bounds, self.padded = [], []
        for fragment in self.layout.fragments:
            self.padded.append(part_bounds(fragment.size, 2)[-1][1])
            self.bounds.append((0, self.padded[-1]))
        self.contract = unit_contract(self.name, incarnation=self.incarnation)
        self.client = SyncerClient(self.run, self.contract, self.layout, self.bounds, self.padded, networks)
        theta = initial(self.run.model)
        self.weights = [
            self._mine(self.layout.flatten(theta, p), p) for p in range(len(self.layout.fragments))
        ]
        self.anchor = [part.copy() for part in self.weights]
        self.sent: dict[int, np.ndarray] = {}
        """Weights from which its newest contribution to each fragment was computed, until a version arrives."""
        self.versions = (0,) * len(self.weights)
        """Those that it begins with."""
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)

    def start(self) -> NumpyUnit:
        me: Any = self
        start = Start(self.versions, self.versions)
        self.loop = Loop(self.run, me, me, self.client, me, me, start, threading.Event(), me)
        self.client.start(self.versions, 0, "seeded by the test")
        self._thread.start()
        return self

    def hold_nothing(self) -> None:
        """Hold no fragment, so that every fragment must come from the syncer first."""
        self.versions = (NOTHING,) * len(self.weights)

    def halt(self) -> None:
        """End like a killed process: the loop ends and the link breaks."""
        self._halt.set()
        if self.running:
            self._thread.join(PARTING_SECONDS)
        self.client.close(PARTING_SECONDS)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether the syncer has told it that the run is finished."""
        return isinstance(self.client.last_word(), Stop)

    @property
    def received(self) -> dict[int, int]:
        """Newest version of each fragment."""
        return dict(enumerate(self.loop.progress.versions))

    def _mine(self, flat: np.ndarray, p: int) -> np.ndarray:
        whole = np.zeros(self.padded[p], np.float32)
        whole[: flat.size] = flat
        return whole

    def _train(self) -> None:
        while not self._halt.wait(self.step_seconds):
            if max(self.received.values()) < self.until and self.loop.advance() is not Ending.NONE:
                break

    # what the loop calls

    def extremes(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values, values

    def step(self, tokens: object, rate: float) -> float:
        self.cursor += 1
        for part in self.weights:
            part += 0.05 * (np.float32(self.target) - part)
        return float(np.mean([np.mean((part - self.target) ** 2) for part in self.weights if part.size]))

    def extract(self, theta: object, number: int, codec: str) -> Any:
        self.contributed += 1
        self.sent[number] = self.weights[number].copy()
        body = codecs.pack(self.anchor[number] - self.sent[number], codec)
        return whole_body(np.frombuffer(body, np.uint8))

    def receive(self, theta: object, number: int, part: np.ndarray) -> None:
        before = self.sent.pop(number, self.weights[number])
        self.anchor[number] = part.astype(np.float32)
        self.weights[number] = self.anchor[number] + self.weights[number] - before


@pytest.fixture(name="numpy_unit")
def numpy_unit_fixture(certificate: Callable[[str], Path]) -> Iterator[Callable[..., NumpyUnit]]:
    """Makes units, with their own certificates unless given a network. Halts those that the test left running."""
    units: list[NumpyUnit] = []

    def make(run: RunContract, name: str, network: Any = None, **keywords: Any) -> NumpyUnit:
        units.append(NumpyUnit(run, name, network or networks(run, certificate(name)), **keywords))
        return units[-1]

    yield make
    for unit in units:
        unit.halt()


class Program:
    """`python -m atoll_runtime.…`, which a test may start several times. It serves `/status` and pages without TLS."""

    def __init__(
        self, run: RunContract, folder: Path, tls: Path, ports: tuple[int, int], **told: str
    ) -> None:
        self.run, self.folder, self.tls, self._ports = run, folder, tls, ports
        self.log, self._told = folder / "program.log", told
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(dump(run))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def away(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def execute(self, module: str) -> subprocess.Popen[bytes]:
        run_file = str(self.folder / "run.json")
        environment = {**os.environ, ENV_RUN_FILE: run_file, ENV_TLS_DIR: str(self.tls), **self._told}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"atoll_runtime.{module}"], env=environment, stdout=log, stderr=log
            )
        return self.process

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PARTING_SECONDS)

    def told(self, tls: Path | None = None) -> bytes | None:
        """The report over HTTPS, for its own certificate or that in `tls`; None if there is no answer."""
        context = ssl.create_default_context(cafile=str(self.tls / "ca.crt"))
        context.load_cert_chain((tls or self.tls) / "tls.crt", (tls or self.tls) / "tls.key")
        url = f"https://localhost:{self._ports[0]}/status"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS, context=context) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    def plain(self, path: str) -> str:
        url = f"http://localhost:{self._ports[1]}{path}"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())


class Syncer(Program):
    """One shard. It has the same volume at each start."""

    def __init__(self, run: RunContract, tls: Path, folder: Path, shard: int = 0) -> None:
        address = run.shards[shard]
        told = {ENV_JOURNAL_DIR: str(folder / "volume"), ENV_SHARD: str(shard)}
        super().__init__(run, folder, tls, (address.status_port, address.health_port), **told)

    def start(self) -> None:
        self.execute("syncer")

    def status(self) -> SyncerStatus | None:
        told = self.told()
        return None if told is None else SyncerStatus.model_validate_json(told)

    def figure(self, name: str) -> float:
        """A figure of this shard alone, from its metrics; 0 if there is no answer."""
        try:
            lines = self.plain("/metrics").splitlines()
        except OSError:
            return 0.0
        return float(next(line.split()[1] for line in lines if line.startswith(f"atoll_syncer_{name} ")))


@pytest.fixture(name="syncer")
def syncer_fixture(tmp_path: Path, certificate: Callable[[str], Path]) -> Iterator[Callable[..., Syncer]]:
    started: list[Syncer] = []

    def start(run: RunContract, shard: int = 0) -> Syncer:
        started.append(
            Syncer(run, certificate("syncer"), tmp_path / f"syncer-{shard}-of-{len(run.shards)}", shard)
        )
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        if not each.away:
            each.end(signal.SIGKILL)


class Learner:
    """A host of a unit that learns in numpy, as a separate process (`numpy_learner.py`)."""

    def __init__(
        self, run: RunContract, tls: Path, unit: str, incarnation: int, step_seconds: float, folder: Path
    ) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(dump(run))
        self.unit, self.incarnation = unit, incarnation
        script = Path(__file__).with_name("numpy_learner.py")
        arguments = [str(folder / "run.json"), str(tls), unit, str(incarnation), str(step_seconds)]
        with (folder / f"{unit}.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, str(script), *arguments], stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PARTING_SECONDS)


@pytest.fixture(name="learner_process")
def learner_process_fixture(
    tmp_path: Path, certificate: Callable[[str], Path]
) -> Iterator[Callable[..., Learner]]:
    started: list[Learner] = []

    def start(run: RunContract, unit: str, incarnation: int = 1, step_seconds: float = 0.01) -> Learner:
        started.append(
            Learner(run, certificate(unit), unit, incarnation, step_seconds, tmp_path / "learners")
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
