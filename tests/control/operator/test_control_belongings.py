"""What somebody deletes or changes of a run's own objects is put right at once, and no other writer is fought."""

from __future__ import annotations

import time
from typing import Any

import pytest
from control_bench import Bench

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ("r-one-0", "r-one-1", "r-two-0")
CALM_SECONDS = 2.0
BELONGINGS = [
    ("ConfigMap", "r-config"), ("Service", "r-syncer"), ("Service", "r-one-0"), ("StatefulSet", "r-syncer"),
    ("Secret", "r-one-0-tls"), ("Secret", "r-syncer-tls"), ("Secret", "r-ca"),
]  # fmt: skip
CHANGES: list[tuple[str, str, Any]] = [
    ("ConfigMap", "r-config", {"data": {"run.json": "{}"}}),
    ("Service", "r-one-0", {"spec": {"selector": {"atoll.dev/unit": "x"}}}),
    ("StatefulSet", "r-syncer", {"spec": {"replicas": 3}}),
    ("Secret", "r-one-0-tls", {"data": {"tls.crt": "eA=="}}),
]


def versions(bench: Bench) -> list[str]:
    return [bench.get(*name)["metadata"]["resourceVersion"] for name in BELONGINGS]


def calm(bench: Bench) -> list[str]:
    """Wait until nobody writes these objects any more; their versions."""
    seen, since = versions(bench), time.monotonic()

    def still() -> bool:
        nonlocal seen, since
        if (now := versions(bench)) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() > since + CALM_SECONDS

    bench.until("they are not written again and again", still)
    return seen


def test_what_others_delete_or_change_is_put_right_and_what_they_add_stays(bench: Bench) -> None:
    bench.operator()
    bench.begin()
    calm(bench)
    pods = bench.uids()
    for kind, name in BELONGINGS:
        old = bench.get(kind, name)["metadata"]["uid"]
        bench.delete(kind, name)
        bench.until(f"{kind} {name}", lambda: bench.get(kind, name)["metadata"]["uid"] != old)  # noqa: B023
        owner = bench.get(kind, name)["metadata"]["ownerReferences"][0]
        assert owner["kind"] == ("LearnerUnit" if (kind, name) == ("Service", "r-one-0") else "TrainingRun")
    authority = bench.get("Secret", "r-ca")["data"]["ca.crt"]
    members = [f"{member}-tls" for member in (*UNITS, "r-syncer")]
    bench.until(
        "all trust the new authority",
        lambda: {bench.get("Secret", name)["data"]["ca.crt"] for name in members} == {authority},
    )
    calm(bench)
    for kind, name, change in CHANGES:
        ((section, fields),) = change.items()
        ((field, wrong),) = fields.items()
        bench.patch(kind, name, change)
        bench.until(f"{kind} {name}", lambda: bench.get(kind, name)[section][field] != wrong)  # noqa: B023
    calm(bench)
    added = {"metadata": {"annotations": {"example.com/seen": "yes"}}}
    written = [bench.patch(*name, added)["metadata"]["resourceVersion"] for name in BELONGINGS]
    assert calm(bench) == written
    assert bench.uids() == pods
