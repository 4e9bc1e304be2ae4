"""How runs end: nothing is left, nothing comes back. With the real controllers; nobody runs pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from control_bench import Bench
from objects import RUN

from atoll_local.controlplane import ControlPlane
from atoll_local.kwok import Kwok

CLAIM, BUDGET = "PersistentVolumeClaim", "PodDisruptionBudget"
OWNED = ("LearnerUnit", "StatefulSet", "Pod", "Service", "ConfigMap", "Secret", CLAIM, BUDGET)
HELD = {"TrainingRun", "LearnerUnit"}


class World(Bench):
    """One namespace, and an operator."""

    patience = 90.0

    def left(self) -> dict[str, set[str]]:
        """What a run may leave behind."""
        found = {kind: self.names(kind) - {"kube-root-ca.crt"} for kind in ("TrainingRun", *OWNED)}
        return {kind: names for kind, names in found.items() if names}

    def apply(self) -> Any:
        """Create a run and wait until all its objects exist."""
        run = self.create(RUN)
        wanted = {"r-p-0-1-0", "r-p-1-1-0", "r-syncer-0"}
        self.until("all pods", lambda: wanted <= self.names("Pod"))
        self.until("a volume", lambda: self.names("PersistentVolumeClaim") == {"journal-r-syncer-0"})
        return run

    def stays(self, kinds: set[str], seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert set(self.left()) == kinds
            time.sleep(0.1)

    def hold(self, *finalizers: str) -> None:
        for kind, name in (("LearnerUnit", "r-p-0"), ("LearnerUnit", "r-p-1"), ("TrainingRun", "r")):
            self.patch(kind, name, {"metadata": {"finalizers": list(finalizers)}})

    def log(self) -> list[str]:
        return list(self.operator().log.read_text().splitlines())


@pytest.fixture
def world(
    controlled: tuple[ControlPlane, Kwok], settle: Callable[..., AbstractContextManager[World]]
) -> Iterator[World]:
    with settle(controlled[0], World) as one:
        yield one


def test_a_run_deleted_in_the_foreground_goes_last_and_leaves_nothing(world: World) -> None:
    world.apply()
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    world.api.call("DELETE", world.api.path("TrainingRun", world.namespace, "r"), options)
    world.until("the run is gone", lambda: "TrainingRun" not in world.left())
    world.stays(set(), 2)


def test_a_run_that_is_over_deletes_itself_and_all_that_it_had(world: World) -> None:
    world.apply()
    world.change(activeDeadlineSeconds=1)
    world.until_condition("TrainingRun", "r", "Failed", "True", "DeadlineExceeded")
    world.until("no learners", lambda: not world.names("Pod"))
    assert world.names("PersistentVolumeClaim"), "a failed run keeps its journal"
    world.change(ttlSecondsAfterFinished=1)
    world.until("nothing is left", lambda: not world.left())
    world.stays(set(), 2)


def test_in_a_namespace_that_ends_late_nothing_is_an_error_or_tried_again_and_again(world: World) -> None:
    """Something else holds it back by a finalizer, and so it holds the run."""
    world.apply()
    world.hold("example.com/hold")
    world.api.delete("Namespace", "", world.namespace)
    world.until("only what is held is left", lambda: set(world.left()) == HELD)
    before = len(world.log())
    world.stays(HELD, 7)  # a refused object is tried again after 5 s
    assert len(world.log()) - before <= 2, "a loop would write many lines"
    world.hold()
    world.until("the namespace is gone", lambda: world.namespace not in world.names("Namespace"))
    assert not [line for line in world.log() if '"level": "error"' in line]
