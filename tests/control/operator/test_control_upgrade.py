"""Another version of the operator, with other defaults, on the real API server with the real StatefulSet controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from control_bench import Bench

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
OLD, NEW = "atoll.dev/runtime:1", "atoll.dev/runtime:2"
SYNCERS = {"r-syncer-0", "r-syncer-1"}


def images(bench: Bench, run: str) -> set[str]:
    pods = [pod for pod in bench.pods().values() if pod["metadata"]["labels"]["atoll.dev/run"] == run]
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


def ready(bench: Bench) -> set[str]:
    """Shards whose pods are ready."""
    pods = {
        name: pod["status"].get("conditions", []) for name, pod in bench.pods().items() if name in SYNCERS
    }
    return {
        name for name, found in pods.items() if ("Ready", "True") in [(c["type"], c["status"]) for c in found]
    }


def template(bench: Bench) -> dict[str, Any]:
    return dict(bench.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"]["containers"][0])


def test_another_operator_restarts_nothing_of_a_run_until_its_user_names_another_image(
    bench: Bench, control: Callable[..., None]
) -> None:
    control("statefulset-controller")
    old = bench.operator(ATOLL_RUNTIME_IMAGE=OLD)
    bench.begin(units=1, syncer={"shards": 2})
    bench.until("both shards", lambda: ready(bench) == SYNCERS)
    before = bench.uids()
    old.kill()

    defaults = {"ATOLL_RUNTIME_ENV": '{"A": "1"}', "ATOLL_RUNTIME_PULL_POLICY": "Always"}
    bench.operator(ATOLL_RUNTIME_IMAGE=NEW, **defaults)
    later = bench.run("s", units=1)
    bench.settled(later, ["s-one-0", "s-two-0"])
    bench.until("its own template", lambda: template(bench)["imagePullPolicy"] == "Always")
    bench.until("the syncer of the other", lambda: "s-syncer-0" in bench.pods())
    assert {name: uid for name, uid in bench.uids().items() if name.startswith("r-")} == before
    assert (images(bench, "r"), images(bench, "s")) == ({OLD}, {NEW})
    assert bench.status("TrainingRun", "r")["runtime"]["image"] == OLD

    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("it healed", lambda: "r-one-0-2-0" in bench.pods())
    healed = bench.pods()["r-one-0-2-0"]["spec"]["containers"][0]
    assert healed["image"] == OLD
    assert "A" not in {each["name"] for each in healed["env"]}

    bench.change(image=NEW)
    fewest = 2

    def renewed() -> bool:
        nonlocal fewest
        shards = ready(bench)
        fewest = min(fewest, len(shards))
        return images(bench, "r") == {NEW} and len(shards) == 2

    bench.until("all have it", renewed, 120)
    assert fewest >= 1
    assert {"name": "A", "value": "1"} in template(bench)["env"]
    assert bench.status("TrainingRun", "r")["runtime"]["asked"] == NEW
