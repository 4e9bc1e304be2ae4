"""The operator is killed at each of its writes and started again, and the world comes out the same.

A story in chapters is told in many worlds at once, each a namespace with an operator of its own. World 0 knows no
fault. In world n the operator dies at the n-th write of every chapter, in turns before the write has arrived and after
it was done but not answered; each chapter has to end with the very objects with which it ended in world 0. There are as
many worlds as the longest chapter has writes, and one that shows that it has no more. In those that are left when a
chapter has no n-th write the operator dies at one of a kind that it has not died at.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crash_proxy import Proxy, When
from crash_story import STORY, Chapter
from crash_world import End, World
from operator_forks import ForkedOperator, Forks
from worldview import Eyes

pytestmark = [pytest.mark.control, pytest.mark.timeout(3600)]
EVERY = bool(os.environ.get("ATOLL_TEST_EVERY_CRASH"))
"""Whether the operator dies both before and after each write, and not in turns; takes twice as long."""
AT_ONCE = 4
MOST_PROBLEMS = 4
"""Worlds that come out wrong before the rest is not tried any more."""
MOST_WRITES = 200
"""Of one chapter; more is a loop."""
SITES = frozenset({
    "annotate pods",
    "apply configmaps", "apply learnerunits", "apply secrets", "apply services", "apply statefulsets",
    "create events", "create pods", "create secrets",
    "delete learnerunits", "delete secrets", "delete services", "delete statefulsets", "delete trainingruns",
    "delete pods at once", "delete pods with grace",
    "release pods",
    "write_status learnerunits", "write_status trainingruns",
})  # fmt: skip
"""Where the operator writes. `replace` is of its lease alone, and pods of StatefulSets, which it deletes without a word
of grace, are nobody's here."""


class Story:
    """What happened in world 0, and which chapters have writes that no operator has died at."""

    def __init__(self) -> None:
        self.ends: dict[str, Future[End]] = {chapter.name: Future() for chapter in STORY}
        self.points: Counter[str] = Counter()
        """Of each chapter, before and after the write."""
        self.struck: Counter[tuple[str, str, When]] = Counter()
        """The same, by site."""
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
                struck = world.crash(chapter.act, end, at, when, self.left(chapter, when))
            except AssertionError as error:
                raise AssertionError(f"{chapter.name}: {error}") from error
            print(f"{chapter.name}, {at}: died {when} {struck or 'none'}; {time.monotonic() - began:.1f} s")
            with self._lock:
                if struck:
                    self.points[f"{chapter.name}, {when}"] += 1
                    self.struck[chapter.name, struck.partition(":")[0], when] += 1
                else:
                    self._over.add(chapter.name)

    def left(self, chapter: Chapter, when: When) -> frozenset[str]:
        """For a chapter that has no more writes: their order is not always the same, so some may have been missed."""
        with self._lock:
            if chapter.name not in self._over:
                return frozenset()
            return frozenset(site for site in SITES if (chapter.name, site, when) not in self.struck)

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
def node(api: Any) -> Iterator[None]:
    """One is there from first to last: operators that have seen none do otherwise, and nodes of worlds come and go."""
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nobodys"}})
    yield
    api.call("DELETE", "/api/v1/nodes/nobodys")


@pytest.fixture
def worlds(
    benches: Any, forks: Forks, proxy: Proxy, eyes: Eyes, collector: None, node: None, tmp_path: Path
) -> Any:
    """Makes worlds."""

    @contextmanager
    def make() -> Iterator[World]:
        with benches(partial(ForkedOperator, forks)) as bench:
            world = World(bench, proxy, eyes, tmp_path)
            try:
                yield world
            finally:
                world.close()
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
    assert {site for _, site, _ in story.struck} == SITES
