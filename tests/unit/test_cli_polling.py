"""Polling a cluster for hours that does not always answer, in simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_cli import polling
from atoll_cli.kubectl import KubectlError


class World:
    """A cluster that answers some looks and not others. Looks take no time; sleeps take their full time."""

    def __init__(self, answers: Iterator[bool], chance: float = 0.0) -> None:
        self.now, self.sleeps, self.told, self.looks = 0.0, list[float](), list[str](), 0
        self._answers = answers
        self._chance = chance

    def look(self) -> int:
        self.looks += 1
        if not next(self._answers):
            raise KubectlError("TLS handshake timeout")
        return self.looks

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def poll(self) -> Iterator[int]:
        return polling.poll(
            self.look, self.told.append, clock=lambda: self.now, sleep=self.sleep, chance=lambda: self._chance
        )


def test_a_cluster_that_answers_is_looked_at_every_two_seconds() -> None:
    world = World(itertools.repeat(True))
    assert list(itertools.islice(world.poll(), 4)) == [1, 2, 3, 4]
    assert world.sleeps == [2.0, 2.0, 2.0]
    assert world.told == []


def test_each_silence_is_told_once_and_outlived() -> None:
    world = World(iter([True, False, False, False, True, False, True, True]))
    assert list(itertools.islice(world.poll(), 4)) == [1, 5, 7, 8]
    assert world.told == ["TLS handshake timeout; asking again for 15 min 00 s"] * 2
    assert world.sleeps == [2.0, 4.0, 8.0, 16.0, 2.0, 4.0, 2.0]


def test_a_silence_that_does_not_end_is_an_error_after_its_bound() -> None:
    world = World(itertools.chain([True], itertools.repeat(False)))
    with pytest.raises(KubectlError, match="TLS handshake timeout"):
        list(world.poll())
    assert polling.SILENCE < world.now <= polling.SILENCE + polling.LONGEST
    assert len(world.told) == 1
    assert world.looks < 40


def test_a_first_look_that_fails_is_an_error_at_once() -> None:
    world = World(itertools.repeat(False))
    with pytest.raises(KubectlError):
        next(world.poll())
    assert (world.now, world.looks, world.told) == (0.0, 1, [])


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_no_wait_is_longer_than_the_longest_or_shorter_than_a_whole_interval(
    failures: int, chance: float
) -> None:
    assert polling.INTERVAL <= polling.back_off(failures, chance) <= polling.LONGEST
