"""`python -m atoll_runtime.learner` as processes: hosts that are killed, a seed from another unit, exit statuses."""

from __future__ import annotations

import signal
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol_parties import Program

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import (
    ENV_UNIT,
    EXIT_FENCED,
    EXIT_OK,
    EXIT_TERMINAL,
    EXIT_VERSION,
    CheckpointSpec,
    DataSpec,
    Dimensions,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunContract,
    TargetSpec,
    dump,
)
from atoll_runtime.data import write_text
from atoll_runtime.evaluate import evaluate
from atoll_runtime.learner.__main__ import EXIT_RETRY
from atoll_runtime.learner.mesh import reach
from atoll_runtime.simulate.blank import unit_contract

pytestmark = pytest.mark.timeout(900)
TARGET = 200
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
"""Compile fast, and leave the cores to each other."""
EXIT_SECONDS = 120
"""For a process that ends by itself, some seconds after it has imported JAX; a bound for a machine that others use."""


class Hosts:
    """Starts hosts of units; all are killed at the end of the test."""

    def __init__(
        self, folder: Path, run: RunContract, ports: Callable[[int], list[int]], certificate: Any
    ) -> None:
        self._run, self._folder, self._ports, self._certificate = run, folder, ports, certificate
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, unit: str, incarnation: int = 1, hosts: int = 1, **other: Any) -> list[Any]:
        port, *served = self._ports(1 + hosts)
        common = {"incarnation": incarnation, "hosts": hosts, "batch": 4, "streams": 2, **other}
        common["coordinator"] = f"127.0.0.1:{port}"
        contracts = [
            unit_contract(unit, host=host, address=f"localhost:{served[host]}", **common)
            for host in range(hosts)
        ]
        tls = self._certificate(unit)
        return [self.execute(dump(one), tls) for one in contracts]

    def execute(self, contract: str, tls: Path) -> subprocess.Popen[bytes]:
        compiler = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS, "TMPDIR": str(self._folder)}
        program = Program(self._run, self._folder, tls, (0, 0), **compiler, **{ENV_UNIT: contract})
        self._started.append(program.execute("learner"))
        return self._started[-1]

    def said(self) -> str:
        return (self._folder / "program.log").read_text(errors="replace")

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(20)


@pytest.fixture
def run(make_run: Any, tmp_path: Path) -> RunContract:
    """Two shards; units are seeded by a peer where there is one."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = sorted(path for name in ("json", "email", "http") for path in (library / name).glob("*.py"))
    write_text(
        f"file://{tmp_path}/data", ((str(path.relative_to(library)), path.read_bytes()) for path in texts)
    )
    return make_run(
        shards=2,
        seed="Peer",
        model=ModelSpec(dimensions=Dimensions(layers=2, width=48, heads=2, kv_heads=1, hidden=96)),
        data=DataSpec(uri=f"file://{tmp_path}/data", sequence_length=64),
        inner=InnerSpec(learning_rate=3e-3, warmup_steps=10),
        outer=OuterSpec(fragments=6, interval=6, overlap=2),
        target=TargetSpec(global_steps=TARGET),
        checkpoint=CheckpointSpec(uri=f"file://{tmp_path}/bucket", interval_steps=20, keep=50),
    )


@pytest.fixture
def hosts(run: RunContract, certificate: Any, free_ports: Any, tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, run, free_ports, certificate)
    yield made
    made.kill()


@pytest.mark.long
def test_a_unit_whose_host_was_killed_comes_back_from_a_peer_and_the_run_finishes(
    run: RunContract, hosts: Hosts, syncer: Any, eventually: Any
) -> None:
    shards = [syncer(run, shard) for shard in range(2)]
    pair = hosts.start("pair", hosts=2)
    [single] = hosts.start("single", stream=1, batch=64)

    def merged(unit: str, incarnation: int) -> Any:
        """The unit as shard 0 reports it, once enough of this incarnation is merged."""
        status = shards[0].status()
        found = status and status.units.get(unit)
        return found and found.incarnation == incarnation and found.contributions >= 3 and found

    eventually(lambda: merged("pair", 1) and merged("single", 1), 200)
    eventually(lambda: any(Path(run.checkpoint.uri.removeprefix("file://")).glob("units/pair/*/*")), 200)
    before = merged("single", 1)

    pair[1].send_signal(signal.SIGKILL)
    assert pair[0].wait(EXIT_SECONDS) not in (EXIT_OK, None), "JAX ends the whole gang when a host dies"
    healed = hosts.start("pair", incarnation=2, hosts=2)
    back = eventually(lambda: merged("pair", 2), 200)
    assert "seeded from peer single" in back.seed_message, hosts.said()
    assert back.step > 3, "inner steps go on from the incarnation before"
    assert merged("single", 1).step > before.step + 5, "the other went on"
    beginning = eventually(lambda: merged("pair", 2).beginning)
    assert beginning.loaded > 0, "programs of the incarnation before"

    [stale] = hosts.start("pair", incarnation=1)
    assert stale.wait(EXIT_SECONDS) == EXIT_FENCED, hosts.said()

    ends = [
        eventually(lambda each=each: (s := each.status()) and s.phase == "Finished" and s, 300)
        for each in shards
    ]
    assert [end.global_step for end in ends] == [TARGET] * 2
    assert [process.wait(EXIT_SECONDS) for process in (single, *healed)] == [EXIT_OK] * 3, hosts.said()
    for end in ends:
        for account in end.ledger.values():
            assert account.trained == account.merged + sum(account.discarded.values()) + account.in_flight
    store = GlobalStore(run.checkpoint.uri)
    assert store.steps()[0] == TARGET and store.load(TARGET, momentum=False).shards == 2
    losses = [
        evaluate(store.uri, step, run.data.uri, max_tokens=8192, length=64)[1].nats for step in (0, None)
    ]
    assert losses[1] < losses[0] - 1


def test_a_host_that_cannot_work_says_why_and_its_status_whether_another_start_may_help(
    hosts: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "data" / "meta.json").write_text('{"format": 1}')
    [unread] = hosts.start("pair")
    unasked = hosts.execute("{}", tmp_path)
    nameless = hosts.execute(dump(unit_contract(batch=4)), tmp_path / "nameless")
    ends = [process.wait(EXIT_SECONDS) for process in (unread, unasked, nameless)]
    assert ends == [EXIT_TERMINAL, EXIT_VERSION, EXIT_RETRY], hosts.said()
    assert f"DataInvalid: file://{tmp_path}/data/meta.json: dtype: Field required" in hosts.said()
    assert "VersionMismatch: ATOLL_UNIT: unit: Field required" in hosts.said()
    assert f"CertificateUnreadable: {tmp_path}/nameless/ca.crt" in hosts.said()


def test_a_host_that_waits_for_its_checkpoint_ends_at_once_on_sigterm(hosts: Hosts, eventually: Any) -> None:
    [waiting] = hosts.start("pair")
    eventually(lambda: "holds none yet" in hosts.said(), EXIT_SECONDS)
    waiting.terminate()
    assert waiting.wait(EXIT_SECONDS) == 128 + signal.SIGTERM


def test_a_host_says_where_it_looked_for_host_0(free_ports: Any) -> None:
    [port] = free_ports(1)
    with pytest.raises(RuntimeError, match=f"host 0 of the unit, localhost:{port}, is not there after 0.1 s"):
        reach(f"localhost:{port}", 0.1)
