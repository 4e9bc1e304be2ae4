"""Polling a cluster for hours that does not always answer, in simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_cli import polling
from atoll_cli.kubectl import KubectlError


class World:
    """A cluster that answers some looks and not others. Looks take no time; sleeps take their full time."""

    def __init__(self) -> None:
        self.now, self.sleeps, self.told, self.looks = 0.0, list[float](), list[str](), 0
        self._answers: Iterator[bool] = iter(())

    def look(self) -> int:
        self.looks += 1
        if not next(self._answers):
            raise KubectlError("TLS handshake timeout")
        return self.looks

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def poll(self, answers: Iterator[bool]) -> Iterator[int]:
        self._answers = answers
        return polling.poll(self.look, self.told.append)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    one = World()
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: one.now, sleep=one.sleep))
    monkeypatch.setattr(polling, "random", SimpleNamespace(random=lambda: 0.0))
    return one


def test_a_cluster_is_looked_at_every_two_seconds_and_each_silence_is_told_once_and_outlived(
    world: World,
) -> None:
    answers = iter([True, False, False, False, True, False, True, True])
    assert list(itertools.islice(world.poll(answers), 4)) == [1, 5, 7, 8]
    assert world.told == ["TLS handshake timeout; asking again for 15 min 00 s"] * 2
    assert world.sleeps == [2.0, 4.0, 8.0, 16.0, 2.0, 4.0, 2.0]


def test_a_silence_that_does_not_end_is_an_error_after_its_bound(world: World) -> None:
    with pytest.raises(KubectlError, match="TLS handshake timeout"):
        list(world.poll(itertools.chain([True], itertools.repeat(False))))
    assert polling.SILENCE < world.now <= polling.SILENCE + polling.LONGEST
    assert len(world.told) == 1
    assert world.looks < 40


def test_a_first_look_that_fails_is_an_error_at_once(world: World) -> None:
    with pytest.raises(KubectlError):
        next(world.poll(itertools.repeat(False)))
    assert (world.now, world.looks, world.told) == (0.0, 1, [])


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_no_wait_is_longer_than_the_longest_or_shorter_than_a_whole_interval(
    failures: int, chance: float
) -> None:
    assert polling.INTERVAL <= polling.back_off(failures, chance) <= polling.LONGEST
