"""Another version of the operator, with other defaults, on the real API server with the real StatefulSet controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from controllers import controllers

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
OLD, NEW = "atoll.dev/runtime:1", "atoll.dev/runtime:2"
UNITS = ["r-one-0", "r-two-0"]
SYNCERS = ["r-syncer-0", "r-syncer-1"]


@pytest.fixture
def stateful_sets(plane, tmp_path: Path) -> Iterator[None]:
    """The real StatefulSet controller, alone of all controllers."""
    with controllers(plane, tmp_path, "statefulset-controller"):
        yield


def uids(bench) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}


def images(bench, run: str) -> set[str]:
    pods = [pod for pod in bench.pods().values() if pod["metadata"]["labels"]["atoll.dev/run"] == run]
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


def ready(bench) -> set[str]:
    """Shards whose pods are ready."""
    return {
        name
        for name, pod in bench.pods().items()
        if name in SYNCERS
        and any(
            (each["type"], each["status"]) == ("Ready", "True")
            for each in pod["status"].get("conditions", [])
        )
    }


def template(bench) -> dict[str, Any]:
    main = bench.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"]["containers"][0]
    return dict(main)


def test_another_operator_restarts_nothing_of_a_run_until_its_user_names_another_image(
    bench, stateful_sets
) -> None:
    old = bench.operator(ATOLL_RUNTIME_IMAGE=OLD)
    run = bench.run(units=1, syncer={"shards": 2})
    bench.settled(run, UNITS)
    bench.until("both shards", lambda: ready(bench) == {*SYNCERS})
    before = uids(bench)
    old.kill()

    bench.operator(
        ATOLL_RUNTIME_IMAGE=NEW, ATOLL_RUNTIME_ENV='{"A": "1"}', ATOLL_RUNTIME_PULL_POLICY="Always"
    )
    later = bench.run("s", units=1)
    bench.settled(later, ["s-one-0", "s-two-0"])
    bench.until("its own template", lambda: template(bench)["imagePullPolicy"] == "Always")
    bench.until("the syncer of the other", lambda: "s-syncer-0" in bench.pods())
    assert {name: uid for name, uid in uids(bench).items() if name.startswith("r-")} == before
    assert (images(bench, "r"), images(bench, "s")) == ({OLD}, {NEW})
    assert bench.get("TrainingRun", "r")["status"]["runtime"]["image"] == OLD

    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("it healed", lambda: "r-one-0-2-0" in bench.pods())
    healed = bench.pods()["r-one-0-2-0"]["spec"]["containers"][0]
    assert healed["image"] == OLD
    assert "A" not in {each["name"] for each in healed["env"]}

    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": {"image": NEW}})
    fewest = 2

    def renewed() -> bool:
        nonlocal fewest
        shards = ready(bench)
        fewest = min(fewest, len(shards))
        return images(bench, "r") == {NEW} and len(shards) == 2

    bench.until("all have it", renewed, 120)
    assert fewest >= 1
    assert {"name": "A", "value": "1"} in template(bench)["env"]
    assert bench.get("TrainingRun", "r")["status"]["runtime"]["asked"] == NEW
