"""The operator is killed at each of its writes and started again, and the world comes out the same.

A story in chapters is told in many worlds at once, each a namespace with an operator of its own. World 0 knows no
fault. In world n the operator dies at the n-th write of every chapter, in turns before the write has arrived and after
it was done but not answered; each chapter has to end with the very objects with which it ended in world 0. There are as
many worlds as the longest chapter has writes, and one that shows that it has no more.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crash_proxy import Proxy, When
from crash_world import End, World
from operator_forks import ForkedOperator, Forks
from worldview import Eyes

pytestmark = [pytest.mark.control, pytest.mark.timeout(1200)]
EVERY = bool(os.environ.get("ATOLL_TEST_EVERY_CRASH"))
"""Whether the operator dies both before and after each write, and not in turns; takes twice as long."""
AT_ONCE = 4
MOST_PROBLEMS = 4
"""Worlds that come out wrong before the rest is not tried any more."""
MOST_WRITES = 200
"""Of one chapter; more is a loop."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happens to a run."""

    name: str
    act: Callable[[World], None]
    done: Callable[[World], bool]
    """Whether all that has to come of it has come."""


def status(world: World) -> dict[str, Any]:
    return dict(world.get("TrainingRun", "r").get("status", {}))


def condition(world: World, name: str) -> str:
    return str(world.bench.condition("TrainingRun", "r", name)[0])


def pools(world: World, **units: int) -> list[dict[str, Any]]:
    known = world.get("TrainingRun", "r")["spec"]["pools"]
    return [{**pool, "units": units.get(pool["name"], pool["units"])} for pool in known]


def all_learn(world: World, count: int, *restarts: str) -> bool:
    """So many units are there and learn, and exactly these were restarted, once."""
    units = world.api.list("LearnerUnit", world.namespace)
    counts = {unit["metadata"]["name"]: unit["status"]["restartCount"] for unit in units if "status" in unit}
    return status(world).get("unitsSummary") == f"{count}/{count}" and counts == {
        name: int(name in restarts) for name in counts
    }


def create(world: World) -> None:
    world.syncer.clear()
    world.bench.run(units=1)


def fail_pod(world: World) -> None:
    world.bench.kubelet.fail(world.namespace, world.pod("r-one-0", 0), 137)


def fail_container(world: World) -> None:
    world.end_container(world.pod("r-two-0", 1), 1, "AppError: broken")


def lose_pod(world: World) -> None:
    world.api.delete("Pod", world.namespace, world.pod("r-two-1", 1))


def rolled(world: World) -> bool:
    images = {pod["spec"]["containers"][0]["image"] for pod in world.bench.pods().values()}
    return images == {"atoll.dev/runtime:new"} and status(world).get("unitsUpdated") == 2


def suspended(world: World) -> bool:
    replicas = world.get("StatefulSet", "r-syncer")["spec"]["replicas"]
    return condition(world, "Suspended") == "True" and not world.bench.pods() and replicas == 0


def shrunk(world: World) -> bool:
    return "r-two-1-tls" not in world.names("Secret") and not world.bench.pods("r-two-1")


def finish(world: World) -> None:
    world.syncer.update(phase="Finished", finalCheckpoint="gs://bucket/run/global/100")


def finished(world: World) -> bool:
    left = world.bench.pods() or world.names("StatefulSet")
    return condition(world, "Complete") == "True" and not left


def create_and_delete(world: World) -> None:
    create(world)
    world.wait_for_pods(3)
    world.api.delete("TrainingRun", world.namespace, "r")


def gone(world: World) -> bool:
    return not any(
        world.names(kind) for kind in ("TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Secret")
    )


BOTH = ("r-one-0", "r-two-0")
ALL = (*BOTH, "r-two-1")
STORY = (
    Chapter("create", create, lambda world: all_learn(world, 2)),
    Chapter("a pod fails", fail_pod, lambda world: all_learn(world, 2, "r-one-0")),
    Chapter("a container fails", fail_container, lambda world: all_learn(world, 2, *BOTH)),
    Chapter(
        "a new image",
        lambda world: world.change(image="atoll.dev/runtime:new"),
        lambda world: rolled(world) and all_learn(world, 2, *BOTH),
    ),
    Chapter(
        "one unit more",
        lambda world: world.change(pools=pools(world, two=2)),
        lambda world: all_learn(world, 3, *BOTH),
    ),
    Chapter("a pod is lost", lose_pod, lambda world: all_learn(world, 3, *ALL)),
    Chapter("suspend", lambda world: world.change(suspend=True), suspended),
    Chapter("resume", lambda world: world.change(suspend=False), lambda world: all_learn(world, 3, *ALL)),
    Chapter(
        "one unit less",
        lambda world: world.change(pools=pools(world, two=1)),
        lambda world: shrunk(world) and all_learn(world, 2, *BOTH),
    ),
    Chapter("finish", finish, finished),
    Chapter("its time to live ends", lambda world: world.change(ttlSecondsAfterFinished=0), gone),
    Chapter("create and delete", create_and_delete, gone),
)


class Story:
    """What happened in world 0, and which chapters have writes that no operator has died at."""

    def __init__(self) -> None:
        self.ends: dict[str, Future[End]] = {chapter.name: Future() for chapter in STORY}
        self.points: Counter[str] = Counter()
        self._over: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, world: World) -> None:
        """Without a fault."""
        try:
            for chapter in STORY:
                end, writes = world.tell(chapter.act, chapter.done)
                print(f"{chapter.name}: {writes} writes")
                self.ends[chapter.name].set_result(end)
        except BaseException as error:
            for end in self.ends.values():
                if not end.done():
                    end.set_exception(error)
            raise

    def crash(self, world: World, at: int, turn: int) -> None:
        """With the operator's death at the n-th write of each chapter that has so many."""
        for number, chapter in enumerate(STORY):
            if not self.goes_on(STORY[number:]):
                return
            when: When = ("before", "after")[(at + number + turn) % 2]
            end = self.ends[chapter.name].result()
            began = time.monotonic()
            try:
                struck = world.crash(chapter.act, end, at, when)
            except AssertionError as error:
                raise AssertionError(f"{chapter.name}: {error}") from error
            print(f"{chapter.name}, {at}: died {when} {struck or 'none'}; {time.monotonic() - began:.1f} s")
            with self._lock:
                if struck:
                    self.points[f"{chapter.name}, {when}"] += 1
                else:
                    self._over.add(chapter.name)

    def goes_on(self, chapters: Iterable[Chapter] = STORY) -> bool:
        """Whether one of them has writes left."""
        with self._lock:
            return any(chapter.name not in self._over for chapter in chapters)


@pytest.fixture
def forks() -> Iterator[Forks]:
    one = Forks()
    yield one
    one.close()


@pytest.fixture
def proxy(plane: Any, api: Any, operator_kubeconfig: Path) -> Iterator[Proxy]:
    pair = plane.authority.issue("crash-proxy", "crash-proxy", hosts=("127.0.0.1",))
    one = Proxy(pair, operator_kubeconfig, api.authority.decode())
    yield one
    one.close()


@pytest.fixture
def eyes(api: Any) -> Iterator[Eyes]:
    one = Eyes(api.call)
    yield one
    one.close()


@pytest.fixture
def worlds(benches: Any, forks: Forks, proxy: Proxy, eyes: Eyes, collector: None, tmp_path: Path) -> Any:
    """Makes worlds."""

    @contextmanager
    def make() -> Iterator[World]:
        with benches(partial(ForkedOperator, forks)) as bench:
            world = World(bench, proxy, eyes, tmp_path)
            yield world
            for log in tmp_path.glob(f"{bench.namespace}-operator-*.log"):
                assert "Traceback" not in log.read_text()

    return make


def test_an_operator_killed_at_any_of_its_writes_leaves_the_world_as_if_it_had_lived(worlds: Any) -> None:
    story = Story()
    numbers = itertools.count()
    problems: list[str] = []

    def work() -> None:
        while story.goes_on() and len(problems) < MOST_PROBLEMS:
            number = next(numbers)
            assert number < MOST_WRITES, f"a chapter has more than {MOST_WRITES} writes: {story.points}"
            at, turn = ((number + 1) // 2, (number + 1) % 2) if EVERY else (number, 0)
            try:
                with worlds() as world:
                    story.crash(world, at, turn) if number else story.tell(world)
            except AssertionError as error:
                problems.append(f"world {number}: {error}")
                print(problems[-1])

    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(work) for _ in range(AT_ONCE)]:
            done.result()
    for name, count in sorted(story.points.items()):
        print(f"{name}: {count} points")
    print(f"{story.points.total()} points in {time.monotonic() - started:.0f} s")
    assert not problems, "\n\n".join(problems)
    assert all(any(story.points[f"{c.name}, {when}"] for when in ("before", "after")) for c in STORY)
