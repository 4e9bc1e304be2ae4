"""Several operators at one API server: one acts, and another follows when it goes, in whatever way."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from atoll_operator.leader import lease_name

pytestmark = [pytest.mark.control, pytest.mark.timeout(180)]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/atoll-system/leases"
SHORT = {"ATOLL_LEASE_SECONDS": "3"}


def operator(bench: Any, **changes: str) -> Any:
    return bench.operator(ATOLL_LEASE_NAMESPACE="atoll-system", **changes)


def leads(one: Any) -> bool:
    return bool(one.page("/readyz") == (200, "ok, leads"))


def stands_by(one: Any) -> bool:
    return bool(one.page("/readyz") == (200, "ok, stands by"))


def holder(bench: Any) -> str:
    spec = bench.api.call("GET", f"{LEASES}/{lease_name([bench.namespace])}")["spec"]
    return str(spec.get("holderIdentity", ""))


def healed(bench: Any, incarnation: int) -> bool:
    return set(bench.pods("r-one-0")) == {f"r-one-0-{incarnation}-0"}


@pytest.fixture
def run(bench: Any) -> Iterator[Any]:
    """A placed run, its leader, and the seconds that a lease lasts."""
    first = operator(bench)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    assert leads(first)
    yield first
    bench.api.call("DELETE", f"{LEASES}/{lease_name([bench.namespace])}")


@pytest.mark.parametrize(
    ("how", "limit"),
    [
        pytest.param(signal.SIGKILL, 15.0, id="killed"),
        pytest.param(signal.SIGTERM, 3.0, id="asked-to-stop"),
    ],
)
def test_a_standby_follows_a_leader_that_ends_and_heals_what_fails_meanwhile(
    bench: Any, run: Any, how: int, limit: float, record_property: Any
) -> None:
    second = operator(bench)
    bench.until("the second one stands by", lambda: stands_by(second), 40)
    assert second.figures()["atoll_leader"] == 0
    assert not any(name.startswith("atoll_reconcile_seconds_count") for name in second.figures())
    assert run.figures()["atoll_leader"] == 1
    of_runs = [name for one in (run, second) for name in one.figures() if name.startswith("atoll_runs{")]
    assert len(of_runs) == 1, "each run would count twice"
    ended = time.monotonic()
    run.process.send_signal(how)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("the second one leads", lambda: leads(second), limit)
    took = time.monotonic() - ended
    bench.until("healed", lambda: healed(bench, 2), 5)
    record_property("takeover_seconds", round(took, 2))
    print(f"takeover {took:.2f} s, healed {time.monotonic() - ended:.2f} s after {signal.Signals(how).name}")
    assert took <= limit
    assert bench.get("LearnerUnit", "r-one-0")["status"]["incarnation"] == 2
    if how == signal.SIGTERM:
        assert run.process.wait(20) == 0


@pytest.mark.parametrize(
    ("how", "identity", "limit"),
    [
        # Alone on two cores (2026-11-21) 11.8, 0.9 and 0.8 s, 0.7 of which import Python's modules.
        pytest.param(signal.SIGKILL, "another", 15.0, id="killed-new-pod"),
        pytest.param(signal.SIGKILL, "", 6.0, id="killed-same-pod"),
        pytest.param(signal.SIGTERM, "another", 6.0, id="asked-to-stop"),
    ],
)
def test_an_operator_that_starts_heals_what_failed_while_there_was_none(
    bench: Any, how: int, identity: str, limit: float
) -> None:
    first = operator(bench, ATOLL_IDENTITY="pod_uid")
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    first.kill(how)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    started = time.monotonic()
    operator(bench, ATOLL_IDENTITY=identity or "pod_uid")
    bench.until("healed", lambda: healed(bench, 2), limit + 5)
    took = time.monotonic() - started
    print(f"start to healed {took:.2f} s after {signal.Signals(how).name}")
    assert took <= limit


def test_a_leader_that_was_paused_does_nothing_when_it_wakes(bench: Any) -> None:
    first = operator(bench, **SHORT)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    second = operator(bench, **SHORT)
    bench.until("the second one stands by", lambda: stands_by(second), 40)
    first.process.send_signal(signal.SIGSTOP)
    try:
        bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
        bench.until("the second one heals", lambda: leads(second) and healed(bench, 2), 20)
        held = holder(bench)
    finally:
        first.process.send_signal(signal.SIGCONT)
    bench.until("the first one stands by", lambda: stands_by(first), 20)
    bench.kubelet.fail(bench.namespace, "r-one-0-2-0")
    bench.until("the second one heals again", lambda: healed(bench, 3), 20)
    assert holder(bench) == held and leads(second)
    status = bench.get("LearnerUnit", "r-one-0")["status"]
    assert (status["incarnation"], len(status["restarts"])) == (3, 2)


def test_a_leader_that_is_cut_off_stops_before_another_one_acts_and_stands_by_afterwards(
    bench: Any, relay: Any
) -> None:
    first = operator(bench, KUBECONFIG=str(relay.kubeconfig), **SHORT)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    second = operator(bench, **SHORT)
    bench.until("the second one stands by", lambda: stands_by(second), 40)
    relay.cut()
    bench.until("the first one stops", lambda: stands_by(first), 10)
    assert stands_by(second)
    bench.until("the second one leads", lambda: leads(second), 10)
    relay.mend()
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("healed", lambda: healed(bench, 2), 20)
    assert stands_by(first)


def test_the_only_operator_goes_on_in_the_same_process_after_the_api_server_was_away(
    bench: Any, relay: Any
) -> None:
    only = operator(bench, KUBECONFIG=str(relay.kubeconfig), **SHORT)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    relay.cut()
    bench.until("it stops", lambda: stands_by(only), 10)
    assert only.page("/healthz")[0] == 200
    relay.mend()
    bench.until("it leads again", lambda: leads(only), 20)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("healed", lambda: healed(bench, 2), 60)
    assert only.process.poll() is None


def test_an_operator_whose_queue_is_stuck_is_not_alive(bench: Any, relay: Any) -> None:
    """Without a lease: with one it would give its work up long before."""
    settings = {"ATOLL_RESYNC_SECONDS": "1", "ATOLL_STUCK_SECONDS": "2"}
    one = bench.operator(KUBECONFIG=str(relay.kubeconfig), **settings)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    assert one.page("/healthz") == (200, "ok")
    relay.cut()
    _, text = bench.until("not alive", lambda: (found := one.page("/healthz"))[0] == 503 and found, 20)
    assert text.startswith("a key has waited for")
    assert one.figures()["atoll_queue_oldest_seconds"] > 2
    relay.mend()
    bench.until("alive again", lambda: one.page("/healthz")[0] == 200, 60)
