"""Several operators at one API server: one acts, and another follows when it goes, in whatever way."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from control_bench import Bench
from holding_gate import HoldingGate, nothing

pytestmark = pytest.mark.timeout(300)
SHORT, LONG = "6", "120"
"""Seconds of a lease; the long one does not run out during a test."""
LIMITS = {"3": 30.0, "10": 15.0, LONG: 30.0}
"""Seconds within which another operator leads, by the seconds of the lease; 10 is the default."""


def operator(bench: Bench, lease: str = SHORT, **changes: str) -> Any:
    return bench.operator(ATOLL_LEASE_NAMESPACE="atoll-system", ATOLL_LEASE_SECONDS=lease, **changes)


def led(bench: Bench, lease: str = SHORT, **changes: str) -> Any:
    one = operator(bench, lease, **changes)
    bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3)
    assert leads(one)
    return one


def standby(bench: Bench, lease: str = SHORT) -> Any:
    one = operator(bench, lease)
    bench.until("the second one stands by", lambda: stands_by(one))
    return one


def leads(one: Any) -> bool:
    return bool(one.page("/readyz") == (200, "ok, leads"))


def stands_by(one: Any) -> bool:
    return bool(one.page("/readyz") == (200, "ok, stands by"))


def fail(bench: Bench, incarnation: int = 1) -> None:
    bench.kubelet.fail(bench.namespace, f"r-one-0-{incarnation}-0")


def healed(bench: Bench, incarnation: int = 2) -> None:
    bench.until("healed", lambda: set(bench.pods("r-one-0")) == {f"r-one-0-{incarnation}-0"})


WAYS = [
    pytest.param(signal.SIGKILL, "3", id="killed"),
    pytest.param(signal.SIGKILL, "10", id="killed, default lease", marks=pytest.mark.long),
    # It gives its lease back: nobody waits until that would have run out.
    pytest.param(signal.SIGTERM, LONG, id="asked to stop"),
]


@pytest.mark.parametrize(("how", "lease"), WAYS)
def test_a_standby_follows_a_leader_and_heals_then(bench: Bench, how: int, lease: str) -> None:
    first = led(bench, lease)
    second = standby(bench, lease)
    assert (first.figures()["atoll_leader"], second.figures()["atoll_leader"]) == (1, 0)
    assert not any(name.startswith("atoll_reconcile_seconds_count") for name in second.figures())
    of_runs = [name for one in (first, second) for name in one.figures() if name.startswith("atoll_runs{")]
    assert len(of_runs) == 1, "each run would count twice"
    ended = time.monotonic()
    first.process.send_signal(how)
    fail(bench)
    bench.until("the second one leads", lambda: leads(second))
    took = time.monotonic() - ended
    healed(bench)
    print(f"takeover {took:.2f} s, healed {time.monotonic() - ended:.2f} s after {signal.Signals(how).name}")
    assert took <= LIMITS[lease]
    assert bench.unit("r-one-0")["incarnation"] == 2
    if how == signal.SIGTERM:
        assert first.process.wait(20) == 0
        assert "Traceback" not in first.log.read_text()


def test_an_operator_that_starts_again_in_its_pod_has_its_lease_and_heals_what_failed(bench: Bench) -> None:
    led(bench, LONG, ATOLL_IDENTITY="pod_uid").kill()
    fail(bench)
    started = time.monotonic()
    operator(bench, LONG, ATOLL_IDENTITY="pod_uid")
    healed(bench)
    took = time.monotonic() - started
    print(f"start to healed {took:.2f} s")
    assert took <= LIMITS[LONG]


@pytest.mark.parametrize(("method", "end"), [("PUT", "/status"), ("POST", "/pods"), ("PATCH", "/r-syncer")])
def test_a_late_write_of_a_former_leader_is_lost(
    bench: Bench, gate: HoldingGate, method: str, end: str
) -> None:
    """It was sent while it led, and arrives when another operator leads and has healed the unit twice."""
    first, second = led(bench, KUBECONFIG=str(gate.kubeconfig)), standby(bench)
    late = list[str]()

    def holds(request: Any) -> bool:
        if request.method == method and request.path.endswith(end):
            late.append(request.path)
            return True
        return request.method == "PUT" and "/leases/" in request.path

    gate.holds = holds
    fail(bench)
    if method == "PATCH":  # it sends the syncer's objects of a spec that is not the last one
        bench.change(syncer={"nodeSelector": {"of": "first"}})
    bench.until("it has sent a write", lambda: late)
    bench.until("the second one leads", lambda: leads(second))
    bench.change(syncer={"nodeSelector": {"of": "second"}})
    for incarnation in (1, 2):
        if incarnation > 1:
            fail(bench, incarnation)
        bench.until("healed", lambda n=incarnation + 1: bench.unit("r-one-0")["incarnation"] == n)
        healed(bench, incarnation + 1)
    gate.holds = nothing
    bench.until("all has arrived", lambda: not gate.held)
    bench.until("the first one stands by", lambda: stands_by(first))
    healed(bench, 3)
    template = lambda: bench.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"]  # noqa: E731
    bench.until("the last spec counts", lambda: template().get("nodeSelector") == {"of": "second"})
    assert (bench.unit("r-one-0")["incarnation"], bench.unit("r-one-0")["restartCount"]) == (3, 2)
    first.kill()  # before its gate closes
