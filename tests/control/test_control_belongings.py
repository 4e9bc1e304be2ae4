"""What somebody deletes or changes of a run's own objects is as it was a moment later, and nobody fights over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
WAIT = 60
"""Seconds, a bound for a machine that others use too; a resync comes after 300."""
CALM_SECONDS = 2.0
BELONGINGS = [
    ("ConfigMap", "r-config"),
    ("Service", "r-syncer"),
    ("Service", "r-one-0"),
    ("StatefulSet", "r-syncer"),
    ("Secret", "r-one-0-tls"),
    ("Secret", "r-syncer-tls"),
    ("Secret", "r-ca"),
]


@pytest.fixture
def begun(bench) -> Any:
    """A run whose objects and pods are all there."""
    bench.operator()
    bench.settled(bench.run(), UNITS)
    calm(bench, *BELONGINGS)
    return bench


Name = tuple[str, str]


def versions(bench: Any, objects: Iterable[Name]) -> dict[Name, str]:
    return {(kind, name): bench.get(kind, name)["metadata"]["resourceVersion"] for kind, name in objects}


def calm(bench: Any, *objects: Name) -> dict[Name, str]:
    """Waits until nobody writes these objects any more; their versions."""
    seen, since = versions(bench, objects), time.monotonic()

    def still() -> bool:
        nonlocal seen, since
        if (now := versions(bench, objects)) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() > since + CALM_SECONDS

    bench.until("they are not written again and again", still, WAIT)
    return seen


def test_whatever_is_deleted_by_hand_comes_back_long_before_the_resync(begun) -> None:
    bench = begun
    pods = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    for kind, name in BELONGINGS:
        old = bench.get(kind, name)["metadata"]["uid"]
        bench.api.delete(kind, bench.namespace, name)
        at = time.monotonic()
        bench.until(f"{kind} {name}", lambda: bench.get(kind, name)["metadata"]["uid"] != old, WAIT)  # noqa: B023
        print(f"{kind} {name}: back after {time.monotonic() - at:.2f} s")
        owner = bench.get(kind, name)["metadata"]["ownerReferences"][0]
        assert owner["kind"] == ("LearnerUnit" if (kind, name) == ("Service", "r-one-0") else "TrainingRun")
    authority = bench.get("Secret", "r-ca")["data"]["ca.crt"]
    bench.until(
        "all trust the new authority",
        lambda: all(
            bench.get("Secret", f"{member}-tls")["data"]["ca.crt"] == authority
            for member in (*UNITS, "r-syncer")
        ),
        WAIT,
    )
    calm(bench, *BELONGINGS)
    assert {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()} == pods


@pytest.mark.parametrize(
    ("kind", "name", "change", "holds"),
    [
        pytest.param(
            "ConfigMap", "r-config", {"data": {"run.json": "{}"}}, lambda body: body["data"]["run.json"] != "{}",
            id="contract",
        ),
        pytest.param(
            "Service", "r-one-0", {"spec": {"selector": {"atoll.dev/unit": "x"}}},
            lambda body: body["spec"]["selector"] == {"atoll.dev/unit": "r-one-0"}, id="selector",
        ),
        pytest.param(
            "StatefulSet", "r-syncer", {"spec": {"replicas": 3}}, lambda body: body["spec"]["replicas"] == 1,
            id="replicas",
        ),
        pytest.param(
            "Secret", "r-one-0-tls", {"data": {"tls.crt": "eA=="}}, lambda body: body["data"]["tls.crt"] != "eA==",
            id="certificate",
        ),
    ],
)  # fmt: skip
def test_what_is_changed_by_hand_is_put_right(
    begun, kind: str, name: str, change: Any, holds: Callable[[Any], bool]
) -> None:
    begun.api.patch(kind, begun.namespace, name, change)
    begun.until("it is as it was", lambda: holds(begun.get(kind, name)), WAIT)
    calm(begun, (kind, name))


def test_what_others_add_stays_and_no_writer_is_fought(begun) -> None:
    bench = begun
    theirs = {"metadata": {"annotations": {"example.com/seen": "yes"}}}
    written = {
        (kind, name): bench.api.patch(kind, bench.namespace, name, theirs)["metadata"]["resourceVersion"]
        for kind, name in BELONGINGS
    }
    assert calm(bench, *BELONGINGS) == written


def test_what_others_make_under_a_name_of_a_complete_run_outlives_its_resyncs(bench) -> None:
    operator = bench.operator(ATOLL_RESYNC_SECONDS="1")
    run = bench.run()
    bench.settled(run, UNITS)
    bench.serve(run).update(phase="Finished", globalStep=100)
    bench.until("Complete", lambda: bench.condition("TrainingRun", "r", "Complete")[0] == "True", WAIT)
    bench.until("no Service", lambda: "r-syncer" not in names(bench, "Service"), WAIT)
    theirs = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "r-syncer"},
        "spec": {"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"port": 80}]},
    }  # fmt: skip
    made = bench.api.create(theirs, bench.namespace)
    passes = 'atoll_reconcile_seconds_count{kind="TrainingRun"}'
    before = operator.figures()[passes]
    bench.until("two resyncs", lambda: operator.figures()[passes] >= before + 3, WAIT)
    assert bench.get("Service", "r-syncer")["metadata"] == made["metadata"]


def names(bench: Any, kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in bench.api.list(kind, bench.namespace)}
