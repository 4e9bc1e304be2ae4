"""The operator's parts without a cluster: settings, certificates, queue, credentials."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from leaping import leap

from atoll_operator import settings
from atoll_operator.certificates.authority import Authorities, Authority, client_context, load_pair
from atoll_operator.kube.errors import CredentialsError, Retry
from atoll_operator.kube.login import load
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.plan.pods.names import evaluator_host

LEAST = {"ATOLL_RUNTIME_IMAGE": "runtime:1"}
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


def test_settings_have_defaults_for_all_but_the_image() -> None:
    read = settings.read(LEAST)
    assert (read.namespaces, read.health_port, read.resync_seconds, read.poll_seconds) == ((), 8080, 300, 2)
    url = read.syncer_url.format(run="r", namespace="n", shard=1)
    assert url == "https://r-syncer-1.r-syncer.n.svc:7401/status"
    url = read.evaluator_url.format(run="r", namespace="n")
    assert url == f"https://{evaluator_host('r', 'n')}:7401/status"


def test_settings_are_read() -> None:
    read = settings.read(LEAST | {"ATOLL_NAMESPACES": "a, b", "ATOLL_RUNTIME_ENV": '{"X": "1"}'})
    assert (read.namespaces, read.runtime_environment) == (("a", "b"), {"X": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATOLL_RUNTIME_IMAGE", ""),
        ("ATOLL_RUNTIME_ENV", "{"),
        ("ATOLL_RUNTIME_ENV", '{"X": 1}'),
        ("ATOLL_RUNTIME_ENV", json.dumps({f"X{n}": "" for n in range(65)})),
        ("ATOLL_RUNTIME_ENV", json.dumps({"X": "a" * 4097})),
        ("ATOLL_RUNTIME_PULL_POLICY", "Sometimes"),
        ("ATOLL_HEALTH_PORT", "x"),
        ("ATOLL_POLL_SECONDS", "0"),
        ("ATOLL_LOG_FORMAT", "xml"),
        ("ATOLL_SYNCER_URL", "https://{host}"),
        ("ATOLL_EVALUATOR_URL", "https://{shard}"),
        ("ATOLL_STUCK_SECONDS", "0"),
        ("ATOLL_LEASE_NAMESPACE", "Not_A_Name"),
        ("ATOLL_LEASE_SECONDS", "2"),
        ("ATOLL_LEASE_SECONDS", "10.5"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(name, value) -> None:
    with pytest.raises(settings.SettingsError, match=name):
        settings.read(LEAST | {name: value})


def test_the_operator_without_settings_ends_with_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atoll_operator"],
        capture_output=True,
        text=True,
        env={},
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("atoll-operator: ATOLL_RUNTIME_IMAGE is not set")
    assert "Traceback" not in done.stderr


def test_a_kubeconfig_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="nowhere"):
        load({"KUBECONFIG": str(tmp_path / "nowhere")})


def kubeconfig(folder: Path, user: dict[str, object]) -> dict[str, str]:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    (folder / "config").write_text(json.dumps(content))
    return {"KUBECONFIG": str(folder / "config")}


def test_a_kubeconfig_with_a_token_logs_in_with_it(tmp_path: Path) -> None:
    access = load(kubeconfig(tmp_path, {"token": "secret"}))
    assert access.server == "https://127.0.0.1:1"
    assert access.headers() == {"Authorization": "Bearer secret"}


def test_a_kubeconfig_with_an_exec_plugin_logs_in_with_what_it_prints(tmp_path: Path) -> None:
    status = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "x1"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [json.dumps(status)],
        "interactiveMode": "Never",
    }
    assert load(kubeconfig(tmp_path, {"exec": plugin})).headers() == {"Authorization": "Bearer x1"}


def test_a_kubeconfig_without_its_context_is_refused(tmp_path: Path) -> None:
    environment = kubeconfig(tmp_path, {"token": "secret"})
    path = Path(environment["KUBECONFIG"])
    path.write_text(path.read_text().replace('"current-context": "here"', '"current-context": "there"'))
    with pytest.raises(CredentialsError, match="there"):
        load(environment)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole TLS handshake in memory; raises what either side raises."""
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(one, two, server_hostname=name), server.wrap_bio(two, one, server_side=True)]
    done = [False, False]
    for _ in range(10):
        for index, side in enumerate(sides):
            if not done[index]:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                    done[index] = True
    with contextlib.suppress(ssl.SSLWantReadError):
        sides[0].read(1)
    assert all(done)


def server_context(authorities: Authorities, trust: Authorities) -> ssl.SSLContext:
    pair = authorities.signer.issue("r-syncer", "spiffe://atoll.dev/x", ["r-syncer.ns.svc"], NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trust.bundle.decode())
    load_pair(context, pair.certificate, pair.key)
    return context


def equipped(authorities: Authorities) -> ssl.SSLContext:
    context = client_context()
    authorities.equip(context, authorities.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    return context


def test_members_of_one_run_trust_each_other_and_no_other_run() -> None:
    ours, theirs = Authorities.of("r", (), NOW), Authorities.of("other", (), NOW)
    client = equipped(ours)
    handshake(server_context(ours, ours), client, "r-syncer.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(theirs, ours), client, "r-syncer.ns.svc")
    with pytest.raises(ssl.SSLError):
        handshake(server_context(ours, theirs), client, "r-syncer.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(ours, ours), client, "elsewhere.ns.svc")


def test_a_context_in_use_follows_a_succession() -> None:
    old = Authorities.of("r", [Authority.new("r", NOW - 900 * DAY)], NOW)
    client = equipped(Authorities([old.trusted[0]], old.signer))
    new = Authorities.of("r", old.trusted, NOW + 2 * DAY)
    assert new.signer is old.trusted[1]
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(new, new), client, "r-syncer.ns.svc")
    new.equip(client, new.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    handshake(server_context(new, new), client, "r-syncer.ns.svc")


def test_authorities_sign_the_same_after_they_were_stored() -> None:
    made = Authorities.of("r", [Authority.new("r", NOW - 900 * DAY)], NOW)
    read = Authorities.of("r", Authorities.load(made.bundle, made.keys), NOW)
    assert (read.bundle, read.keys, len(read.trusted)) == (made.bundle, made.keys, 2)
    pair = made.signer.issue("u", "spiffe://atoll.dev/u", ["u"], NOW)
    assert read.accept(pair.certificate, ["u"], NOW)
    with pytest.raises(ValueError, match="no certificate"):
        Authorities.load(b"", b"")
    with pytest.raises(ValueError, match="zip"):
        Authorities.load(made.bundle, made.signer.pair.key)


def test_a_certificate_is_accepted_for_its_names_by_its_authority_while_more_than_a_third_of_its_life_is_left() -> (
    None
):
    one, two = (f"r-syncer-{shard}.r-syncer.ns.svc" for shard in (0, 1))
    ours = Authorities.of("r", (), NOW)
    certificate = ours.signer.issue("r-syncer", "spiffe://atoll.dev/x", [one], NOW).certificate
    assert ours.accept(certificate, [one], NOW)
    assert ours.accept(certificate, [one], NOW + 59 * DAY)
    assert not ours.accept(certificate, [one], NOW + 60 * DAY)
    assert not ours.accept(certificate, [one, two], NOW)
    assert not ours.accept(ours.bundle, [one], NOW)
    assert not ours.accept(b"no certificate", [], NOW)
    assert not Authorities.of("r", (), NOW).accept(certificate, [one], NOW)


async def work(queue: WorkQueue[str], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(queue.run(), seconds)


def test_a_key_is_handled_once_for_many_adds_and_never_twice_at_a_time() -> None:
    active: set[str] = set()
    handled: list[str] = []

    async def handle(key: str) -> None:
        assert key not in active
        active.add(key)
        handled.append(key)
        if len(handled) == 1:
            queue.add("a")
            queue.add("a")
        await asyncio.sleep(0.01)
        active.remove(key)

    async def worked() -> float:
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        assert queue.depth == 2
        await work(queue, 60)
        return queue.oldest_seconds()

    queue: WorkQueue[str] = WorkQueue(handle, workers=4)
    assert leap(worked()) == 0
    assert sorted(handled) == ["a", "a", "b"]


def test_calm_adds_of_a_key_are_spaced_and_an_urgent_one_is_not() -> None:
    times: list[float] = []

    async def handle(key: str) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 3:
            queue.add_spaced(key, 0.1)
            queue.add_spaced(key, 0.1)
        elif len(times) == 3:
            queue.add_spaced(key, 30)
            queue.add(key)

    async def worked() -> None:
        queue.add_spaced("a", 0.1)
        await work(queue, 20)

    queue: WorkQueue[str] = WorkQueue(handle)
    leap(worked())
    assert times == pytest.approx([0, 0.1, 0.2, 0.2])


def test_a_key_that_fails_comes_back_later_and_one_that_waits_comes_back_in_time() -> None:
    times: list[float] = []

    async def handle(key: str) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise Retry(0.05, "not yet")

    async def worked() -> None:
        queue.add("a")
        queue.add_after("a", 30)
        await work(queue, 20)

    queue: WorkQueue[str] = WorkQueue(handle)
    leap(worked())
    assert len(times) == 2
    assert 0.04 <= times[1] <= 0.05
