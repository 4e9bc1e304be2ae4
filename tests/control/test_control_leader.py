"""Several operators at one API server: one acts, and another follows when it goes, in whatever way."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from atoll_operator.kube.lease import lease_name

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/atoll-system/leases"
SHORT = {"ATOLL_LEASE_SECONDS": "6"}
LONG = "120"
"""Seconds of a lease that does not run out while a test looks."""


def operator(bench: Any, **changes: str) -> Any:
    return bench.operator(ATOLL_LEASE_NAMESPACE="atoll-system", **changes)


def leads(one: Any) -> bool:
    return bool(one.page("/readyz") == (200, "ok, leads"))


def stands_by(one: Any) -> bool:
    return bool(one.page("/readyz") == (200, "ok, stands by"))


def holder(bench: Any) -> str:
    spec = bench.api.call("GET", f"{LEASES}/{lease_name('atoll-operator', [bench.namespace])}")["spec"]
    return str(spec.get("holderIdentity", ""))


def healed(bench: Any, incarnation: int) -> bool:
    return set(bench.pods("r-one-0")) == {f"r-one-0-{incarnation}-0"}


@pytest.mark.parametrize(
    ("how", "lease", "limit"),
    [
        pytest.param(signal.SIGKILL, "3", 30.0, id="killed"),
        pytest.param(signal.SIGKILL, "10", 15.0, id="killed-default-lease", marks=pytest.mark.long),
        # Given back: long before it would have run out.
        pytest.param(signal.SIGTERM, LONG, 30.0, id="asked-to-stop"),
    ],
)
def test_a_standby_follows_a_leader_that_ends_and_heals_what_fails_meanwhile(
    bench: Any, how: int, lease: str, limit: float, record_property: Any
) -> None:
    first = operator(bench, ATOLL_LEASE_SECONDS=lease)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    assert leads(first)
    second = operator(bench, ATOLL_LEASE_SECONDS=lease)
    bench.until("the second one stands by", lambda: stands_by(second))
    assert second.figures()["atoll_leader"] == 0
    assert not any(name.startswith("atoll_reconcile_seconds_count") for name in second.figures())
    assert first.figures()["atoll_leader"] == 1
    of_runs = [name for one in (first, second) for name in one.figures() if name.startswith("atoll_runs{")]
    assert len(of_runs) == 1, "each run would count twice"
    ended = time.monotonic()
    first.process.send_signal(how)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("the second one leads", lambda: leads(second))
    took = time.monotonic() - ended
    bench.until("healed", lambda: healed(bench, 2))
    record_property("takeover_seconds", round(took, 2))
    print(f"takeover {took:.2f} s, healed {time.monotonic() - ended:.2f} s after {signal.Signals(how).name}")
    assert took <= limit
    assert bench.get("LearnerUnit", "r-one-0")["status"]["incarnation"] == 2
    if how == signal.SIGTERM:
        assert first.process.wait(20) == 0


@pytest.mark.parametrize(
    ("how", "identity", "lease", "limit"),
    [
        # Alone on two cores (2026-11-21) 11.8, 0.9 and 0.8 s, 0.7 of which import Python's modules.
        pytest.param(signal.SIGKILL, "another", "3", 30.0, id="killed-new-pod"),
        pytest.param(
            signal.SIGKILL, "another", "10", 15.0, id="killed-default-lease", marks=pytest.mark.long
        ),
        # The lease is its own, or was given back: nobody waits until it would have run out.
        pytest.param(signal.SIGKILL, "pod_uid", LONG, 30.0, id="killed-same-pod"),
        pytest.param(signal.SIGTERM, "another", LONG, 30.0, id="asked-to-stop"),
    ],
)
def test_an_operator_that_starts_heals_what_failed_while_there_was_none(
    bench: Any, how: int, identity: str, lease: str, limit: float
) -> None:
    first = operator(bench, ATOLL_IDENTITY="pod_uid", ATOLL_LEASE_SECONDS=lease)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    first.kill(how)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    started = time.monotonic()
    operator(bench, ATOLL_IDENTITY=identity, ATOLL_LEASE_SECONDS=lease)
    bench.until("healed", lambda: healed(bench, 2))
    took = time.monotonic() - started
    print(f"start to healed {took:.2f} s after {signal.Signals(how).name}")
    assert took <= limit


def test_a_leader_that_was_paused_does_nothing_when_it_wakes(bench: Any) -> None:
    first = operator(bench, **SHORT)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    second = operator(bench, **SHORT)
    bench.until("the second one stands by", lambda: stands_by(second))
    first.process.send_signal(signal.SIGSTOP)
    try:
        bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
        bench.until("the second one heals", lambda: leads(second) and healed(bench, 2))
        held = holder(bench)
    finally:
        first.process.send_signal(signal.SIGCONT)
    bench.until("the first one stands by", lambda: stands_by(first))
    bench.kubelet.fail(bench.namespace, "r-one-0-2-0")
    bench.until("the second one heals again", lambda: healed(bench, 3))
    assert holder(bench) == held and leads(second)
    status = bench.get("LearnerUnit", "r-one-0")["status"]
    assert (status["incarnation"], len(status["restarts"])) == (3, 2)


def test_a_leader_that_is_cut_off_stops_before_another_one_acts_and_stands_by_afterwards(
    bench: Any, relay: Any
) -> None:
    lease = {"ATOLL_LEASE_SECONDS": "12"}  # the last 3.6 s of one that is not renewed are nobody's
    first = operator(bench, KUBECONFIG=str(relay.kubeconfig), **lease)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    second = operator(bench, **lease)
    bench.until("the second one stands by", lambda: stands_by(second))
    relay.cut()
    bench.until("the first one stops", lambda: stands_by(first))
    assert stands_by(second)
    bench.until("the second one leads", lambda: leads(second))
    relay.mend()
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("healed", lambda: healed(bench, 2))
    assert stands_by(first)


def test_the_only_operator_goes_on_in_the_same_process_after_the_api_server_was_away(
    bench: Any, relay: Any
) -> None:
    only = operator(bench, KUBECONFIG=str(relay.kubeconfig), **SHORT)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    relay.cut()
    bench.until("it stops", lambda: stands_by(only))
    assert only.page("/healthz")[0] == 200
    relay.mend()
    bench.until("it leads again", lambda: leads(only))
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("healed", lambda: healed(bench, 2))
    assert only.process.poll() is None


def test_an_operator_whose_queue_is_stuck_is_not_alive(bench: Any, relay: Any) -> None:
    """Without a lease: with one it would give its work up long before."""
    settings = {"ATOLL_RESYNC_SECONDS": "1", "ATOLL_STUCK_SECONDS": "2"}
    one = bench.operator(KUBECONFIG=str(relay.kubeconfig), **settings)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    bench.until("alive", lambda: one.page("/healthz") == (200, "ok"))
    relay.cut()
    _, text = bench.until("not alive", lambda: (found := one.page("/healthz"))[0] == 503 and found)
    assert text.startswith("a key has waited for")
    assert one.figures()["atoll_queue_oldest_seconds"] > 2
    relay.mend()
    bench.until("alive again", lambda: one.page("/healthz")[0] == 200)
