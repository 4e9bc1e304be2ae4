"""The walking island without a cluster: real processes and certificates, two shards, units of two hosts and of one.

A host is killed with SIGKILL; its gang comes back from the checkpoint, and once more from the other unit. A shard is
killed too, and the run finishes.
"""

import contextlib
import datetime
import json
import os
import signal
import ssl
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from held_ports import held_ports

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_RUN_FILE,
    ENV_SHARD,
    ENV_TLS_DIR,
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
    QuorumSpec,
    RunContract,
    SyncerAddress,
    SyncerStatus,
    TargetSpec,
    UnitContract,
    dump,
    identity,
)
from atoll_runtime.data import write_text
from atoll_runtime.evaluate import evaluate
from atoll_runtime.learner.__main__ import EXIT_RETRY

pytestmark = pytest.mark.timeout(1500)
TARGET = 400
SHARDS = 2
DEADLINE = 300.0
EXIT_SECONDS = 120
"""For a process that ends by itself, some seconds after it has imported JAX; a bound for a machine that others use."""


class Authority:
    """A CA, and a folder with `ca.crt`, `tls.crt`, `tls.key` for each identity that it signs."""

    def __init__(self, folder):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "run")])
        usage = x509.BasicConstraints(ca=True, path_length=0)
        self.certificate = self._signed(self.name, self.key, [usage])

    def issue(self, role, name):
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [
                x509.UniformResourceIdentifier(identity("default", "walk", role, name)),
                x509.DNSName("localhost"),
                x509.DNSName(name),
            ]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, [x509.BasicConstraints(ca=False, path_length=None), names])
        folder = self.folder / f"{role}-{name}"
        folder.mkdir()
        pem = serialization.Encoding.PEM
        (folder / "ca.crt").write_bytes(self.certificate.public_bytes(pem))
        (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
        (folder / "tls.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return folder

    def _signed(self, subject, key, extensions):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self.key, hashes.SHA256())


class World:
    """The run's processes; everything that was started is killed at the end."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = Authority(folder)
        for role, name in (
            ("syncer", "walk"),
            ("unit", "pair"),
            ("unit", "single"),
            ("operator", "operator"),
        ):
            self.authority.issue(role, name)
        self.processes = []
        self.held = contextlib.ExitStack()
        ports = self.ports(3 * SHARDS)
        library = Path(sysconfig.get_path("stdlib"))
        texts = sorted(
            path for name in ("json", "email", "http", "asyncio") for path in (library / name).glob("*.py")
        )
        write_text(f"file://{folder}/data", [(str(path.relative_to(library)), path) for path in texts])
        self.run = RunContract(
            name="walk",
            namespace="default",
            uid="walk-1",
            model=ModelSpec(dimensions=Dimensions(layers=2, width=48, heads=2, kv_heads=1, hidden=96)),
            data=DataSpec(uri=f"file://{folder}/data", sequence_length=64),
            inner=InnerSpec(learning_rate=3e-3, warmup_steps=10),
            outer=OuterSpec(fragments=6, interval=6, overlap=2),
            quorum=QuorumSpec(min=1),
            target=TargetSpec(global_steps=TARGET),
            checkpoint=CheckpointSpec(uri=f"file://{folder}/bucket/run", interval_steps=20, keep=50),
            shards=tuple(
                SyncerAddress(host="localhost", port=one, status_port=two, health_port=three)
                for one, two, three in zip(ports[::3], ports[1::3], ports[2::3], strict=True)
            ),
        )
        (folder / "run.json").write_text(dump(self.run))
        peer = self.run.model_copy(update={"seed": "Peer"})
        (folder / "run-peer.json").write_text(dump(peer))

    def ports(self, count):
        """The world's own until its end."""
        return self.held.enter_context(held_ports(count))

    def start(self, module, log, tls, **environment):
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", f"atoll_runtime.{module}"],
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "TMPDIR": str(self.folder),
                    ENV_RUN_FILE: str(self.folder / "run.json"),
                    ENV_TLS_DIR: str(self.folder / tls),
                    **environment,
                },
                stdout=out,
                stderr=out,
            )
        self.processes.append(process)
        return process

    def start_syncer(self, shard):
        volume = {ENV_JOURNAL_DIR: str(self.folder / f"volume-{shard}"), ENV_SHARD: str(shard)}
        return self.start("syncer", f"syncer-{shard}.log", "syncer-walk", **volume)

    def start_unit(self, unit, incarnation, hosts, stream, batch=4, run="run.json"):
        port, *served = self.ports(1 + hosts)
        contracts = [
            UnitContract(
                unit=unit,
                incarnation=incarnation,
                host=host,
                hosts=hosts,
                coordinator=f"127.0.0.1:{port}",
                address=f"localhost:{served[host]}",
                batch=batch,
                stream=stream,
                streams=2,
            )
            for host in range(hosts)
        ]
        return [
            self.start(
                "learner",
                f"{unit}-{one.host}.log",
                f"unit-{unit}",
                **{ENV_UNIT: dump(one), ENV_RUN_FILE: str(self.folder / run)},
            )
            for one in contracts
        ]

    def status(self, shard=0):
        folder = self.folder / "operator-operator"
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        url = f"https://localhost:{self.run.shards[shard].status_port}/status"
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return SyncerStatus.model_validate(json.load(answer))

    def wait_for(self, condition, what, shard=0):
        """The first status for which `condition` holds; fails with the logs after the deadline."""
        end = time.monotonic() + DEADLINE
        last = "no answer"
        while time.monotonic() < end:
            try:
                last = self.status(shard)
            except OSError as error:
                last = error
            else:
                if condition(last):
                    return last
            time.sleep(0.2)
        pytest.fail(f"{what} did not come to pass; last status: {last}\n{self.logs()}")

    def logs(self):
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in self.folder.glob("*.log")
        )

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(20)
        self.held.close()


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    try:
        yield found
    finally:
        found.close()


def balanced(status):
    return all(
        account.trained == account.merged + sum(account.discarded.values()) + account.in_flight
        for account in status.ledger.values()
    )


def test_a_killed_unit_comes_back_from_the_bucket_and_from_a_peer_and_the_run_finishes(world):
    syncers = [world.start_syncer(shard) for shard in range(SHARDS)]
    pair = world.start_unit("pair", 1, hosts=2, stream=0)
    [single] = world.start_unit("single", 1, hosts=1, stream=1, batch=96)

    def merged(unit, incarnation, count=3):
        def condition(status):
            found = status.units.get(unit)
            return found is not None and found.incarnation == incarnation and found.contributions >= count

        return condition

    world.wait_for(merged("pair", 1), "a merge of the unit of two hosts")
    world.wait_for(merged("single", 1), "a merge of the unit of one host", shard=1)
    world.wait_for(lambda s: (s.checkpoint.newest_step or 0) >= 40, "checkpoints after step 0")
    saves = world.folder / "bucket/run/units"
    world.wait_for(lambda s: any(saves.glob("pair/*/*")), "a save of the unit's own")
    before = world.status()

    pair[1].send_signal(signal.SIGKILL)
    assert pair[0].wait(EXIT_SECONDS) != EXIT_OK, "JAX ends the whole gang when a host dies"
    during = world.wait_for(
        lambda s: s.units["single"].step > before.units["single"].step + 5, "others going on"
    )
    assert during.phase == "Running"

    second = world.start_unit("pair", 2, hosts=2, stream=0)
    healed = world.wait_for(merged("pair", 2), "a merge of the next incarnation")
    assert healed.units["pair"].seeded_step >= 20
    assert "seeded from step" in healed.units["pair"].seed_message
    assert "moments from" in healed.units["pair"].seed_message
    assert healed.units["pair"].step > 3, "inner steps go on from the incarnation before"
    told = world.wait_for(lambda s: s.units["pair"].beginning is not None, "word of its first step")
    beginning = told.units["pair"].beginning
    assert beginning.loaded > 0, "programs of the incarnation before"
    assert 0 < beginning.compiling < beginning.stepped - beginning.joined

    syncers[1].kill()
    syncers[1].wait(20)
    stalled = world.status().rounds
    world.wait_for(lambda s: s.rounds > stalled + 3, "shard 0 merging on without shard 1")
    syncers[1] = world.start_syncer(1)
    world.wait_for(
        lambda s: s.restarts == 1 and s.units["single"].step_seconds > 0,
        "shard 1 back from its journal, and counting on the other unit again",
        shard=1,
    )

    for process in second:
        process.kill()
        process.wait(20)
    third = world.start_unit("pair", 3, hosts=2, stream=0, run="run-peer.json")
    healed = world.wait_for(merged("pair", 3), "a merge of the incarnation after")
    assert "seeded from peer single" in healed.units["pair"].seed_message, healed.units["pair"].seed_message

    [stale] = world.start_unit("pair", 1, hosts=1, stream=0)
    assert stale.wait(EXIT_SECONDS) == EXIT_FENCED, world.logs()

    ends = [world.wait_for(lambda s: s.phase == "Finished", "the end", shard) for shard in range(SHARDS)]
    assert [end.global_step for end in ends] == [TARGET] * SHARDS
    for process in (single, *third):
        assert process.wait(EXIT_SECONDS) == EXIT_OK, world.logs()
    assert all(balanced(world.status(shard)) for shard in range(SHARDS))
    for syncer in syncers:
        assert syncer.poll() is None, "a syncer serves its status until it is told to end"
        syncer.terminate()
        assert syncer.wait(EXIT_SECONDS) == EXIT_OK

    store = GlobalStore(world.run.checkpoint.uri)
    assert store.steps()[0] == TARGET
    assert store.load(TARGET, momentum=False).shards == SHARDS
    first = evaluate(store.uri, 0, world.run.data.uri, max_tokens=8192, length=64)
    last = evaluate(store.uri, None, world.run.data.uri, max_tokens=8192, length=64)
    assert last.step == TARGET
    assert last.loss < first.loss - 1.5


def test_a_host_that_can_never_work_ends_with_the_terminal_status_and_says_why(world):
    (world.folder / "data" / "meta.json").write_text('{"format": 1}')
    [unread] = world.start_unit("pair", 1, hosts=1, stream=0)
    unasked = world.start("learner", "unasked.log", "unit-pair", **{ENV_UNIT: "{}"})
    ends = unread.wait(EXIT_SECONDS), unasked.wait(EXIT_SECONDS)
    assert ends == (EXIT_TERMINAL, EXIT_VERSION), world.logs()
    logs = world.logs()
    assert f"DataInvalid: file://{world.folder}/data/meta.json: dtype: Field required" in logs
    assert "VersionMismatch: ATOLL_UNIT: unit: Field required" in logs


def test_a_host_whose_certificate_cannot_be_read_is_worth_another_start(world):
    [nameless] = world.start_unit("nameless", 1, hosts=1, stream=0)
    assert nameless.wait(EXIT_SECONDS) == EXIT_RETRY, world.logs()
    assert f"CertificateUnreadable: {world.folder}/unit-nameless/ca.crt" in world.logs()


def test_a_host_that_waits_for_its_checkpoint_ends_at_once_on_sigterm(world):
    [waiting] = world.start_unit("pair", 1, hosts=1, stream=0)
    end = time.monotonic() + EXIT_SECONDS
    while "holds none yet" not in world.logs():
        assert time.monotonic() < end, world.logs()
        time.sleep(0.1)
    waiting.terminate()
    assert waiting.wait(EXIT_SECONDS) == 128 + signal.SIGTERM
