"""Jobs on a lane: one that fails in any way leaves the others at work."""

from __future__ import annotations

import select
import socket
from concurrent.futures import Future
from typing import Any

import pytest

from atoll_runtime.transport.lanes import Job, Lanes, Ready

SECONDS = 30.0


def reported(what: Any, future: Future[Any]) -> Job:
    """Waits for `what`; tells how that ended."""
    try:
        yield what
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def failing() -> Job:
    yield 0.0
    raise ValueError("a mistake")


def test_a_lane_goes_on_whatever_its_jobs_do(caplog: pytest.LogCaptureFixture) -> None:
    lanes, (one, other) = Lanes("test", most=1), socket.socketpair()
    lost = socket.socket()
    closed = lost.fileno()
    lost.close()
    answers: list[Future[Any]] = [Future() for _ in range(4)]
    lanes.begin(failing())
    lanes.begin(reported(Ready(closed, select.EPOLLIN, SECONDS), answers[0]))
    lanes.begin(reported(Ready(one.fileno(), select.EPOLLIN, 0.0), answers[1]))
    with pytest.raises(OSError, match="Bad file descriptor"):
        answers[0].result(SECONDS)
    with pytest.raises(TimeoutError, match="the other end is silent"):
        answers[1].result(SECONDS)
    lanes.begin(reported(Ready(one.fileno(), select.EPOLLIN, SECONDS), answers[2]))
    lanes.begin(reported(answers[2], answers[3]))
    other.send(b"x")
    assert answers[3].result(SECONDS) is None
    assert "a mistake" in caplog.text
    lanes.close()
    one.close()
    other.close()
