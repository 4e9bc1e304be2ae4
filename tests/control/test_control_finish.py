"""How runs end: nothing is left, nothing comes back. With the real garbage collector and namespace controller."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from objects import RUN

from atoll_local.controlplane import ControlPlane

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build the API server
]
ROOT = Path(__file__).resolve().parents[2]
WAIT = 90
"""Seconds; a bound for a machine that others use too."""
LEFT = ("TrainingRun", "LearnerUnit", "StatefulSet", "Pod", "Service", "ConfigMap", "Secret", "Claim")
NUMBERS = itertools.count(1)


class World:
    """One namespace of a control plane with all its controllers, and an operator. Nobody runs pods."""

    def __init__(self, api: Any, namespace: str, log: Path) -> None:
        self.api, self.namespace, self.log = api, namespace, log

    def names(self, kind: str) -> set[str]:
        """Of what a run may leave behind; not of what every namespace has."""
        path = {"Claim": f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"}
        where = path.get(kind) or self.api.path(kind, self.namespace)
        items = self.api.call("GET", where)["items"]
        return {item["metadata"]["name"] for item in items} - {"kube-root-ca.crt"}

    def left(self) -> dict[str, set[str]]:
        found = {kind: self.names(kind) for kind in LEFT}
        return {kind: names for kind, names in found.items() if names}

    def until(self, what: str, check: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT
        while not (value := check()):
            assert time.monotonic() < deadline, f"not within {WAIT} s: {what}: {self.left()}"
            time.sleep(0.1)
        return value

    def run(self, **spec: Any) -> Any:
        """A run all of whose objects are there."""
        run = self.api.create({**RUN, "spec": {**RUN["spec"], **spec}}, self.namespace)
        wanted = {"r-p-0-1-0", "r-p-1-1-0", "r-syncer-0"}
        self.until("all pods", lambda: wanted <= self.names("Pod"))
        self.until("a volume", lambda: self.names("Claim") == {"journal-r-syncer-0"})
        return run

    def quiet(self, seconds: float) -> None:
        """Nothing comes back."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert not self.left()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def controlled(
    tmp_path_factory: pytest.TempPathFactory, installed: Callable[[ControlPlane], None]
) -> Iterator[ControlPlane]:
    """An API server with our kustomize base and the real controllers, and no node."""
    with ControlPlane(tmp_path_factory.mktemp("controlled"), controllers=True) as plane:
        installed(plane)
        yield plane


@pytest.fixture
def world(controlled: ControlPlane, api: Any, employ: Any) -> Iterator[World]:
    mine = type(api)(controlled)
    namespace = f"end-{next(NUMBERS)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    mine.call("POST", "/api/v1/namespaces", body)
    with employ(controlled, namespace) as operator:
        yield World(mine, namespace, operator.log)


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
def test_a_deleted_run_leaves_nothing(world: World, propagation: str) -> None:
    world.run()
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    world.api.call("DELETE", world.api.path("TrainingRun", world.namespace, "r"), options)
    if propagation == "Foreground":
        world.until("the run is gone", lambda: "TrainingRun" not in world.left())
        assert not world.left(), "it goes last, after all that it owned"
    world.until("nothing is left", lambda: not world.left())
    world.quiet(2)


def test_a_run_that_is_over_deletes_itself_and_all_that_it_had(world: World) -> None:
    world.run()
    change(world, activeDeadlineSeconds=1)
    world.until("Failed", lambda: status(world).get("phase") == "Failed")
    assert "DeadlineExceeded" in {item["reason"] for item in status(world)["conditions"]}
    world.until("no learners, and a journal", lambda: world.names("Pod") == set() and world.names("Claim"))
    change(world, ttlSecondsAfterFinished=1)
    world.until("nothing is left", lambda: not world.left())
    world.quiet(2)


def change(world: World, **spec: Any) -> None:
    world.api.patch("TrainingRun", world.namespace, "r", {"spec": spec})


def status(world: World) -> dict[str, Any]:
    return dict(world.api.get("TrainingRun", world.namespace, "r").get("status", {}))


def test_a_namespace_that_is_deleted_goes_without_errors(world: World) -> None:
    world.run()
    world.api.call("DELETE", f"/api/v1/namespaces/{world.namespace}")
    world.until("the namespace is gone", lambda: gone(world))
    assert not [line for line in world.log.read_text().splitlines() if '"level": "error"' in line]


def test_in_a_namespace_that_cannot_go_yet_nothing_is_tried_again_and_again(world: World) -> None:
    """Something else holds it back, by a finalizer; and so it holds the run."""
    run = world.run()
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    for unit in ("r-p-0", "r-p-1"):
        world.api.patch("LearnerUnit", world.namespace, unit, held)
    world.api.patch("TrainingRun", world.namespace, "r", held)
    world.api.call("DELETE", f"/api/v1/namespaces/{world.namespace}")
    world.until("only what is held is left", lambda: set(world.left()) == {"TrainingRun", "LearnerUnit"})
    before = len(world.log.read_text().splitlines())
    until = time.monotonic() + 7  # a refused object is tried again after 5 s
    while time.monotonic() < until:
        assert set(world.left()) == {"TrainingRun", "LearnerUnit"}
        time.sleep(0.1)
    assert len(world.log.read_text().splitlines()) - before <= 2, "a loop would write many lines"
    for unit in ("r-p-0", "r-p-1"):
        world.api.patch("LearnerUnit", world.namespace, unit, {"metadata": {"finalizers": None}})
    world.api.patch("TrainingRun", world.namespace, "r", {"metadata": {"finalizers": None}})
    world.until("the namespace is gone", lambda: gone(world))
    assert run["metadata"]["uid"]


def gone(world: World) -> bool:
    names = {item["metadata"]["name"] for item in world.api.call("GET", "/api/v1/namespaces")["items"]}
    return world.namespace not in names
