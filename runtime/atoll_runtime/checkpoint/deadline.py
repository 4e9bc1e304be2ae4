"""Calls of libraries that cannot be interrupted, in bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Call(threading.Thread):
    """A call of `in_time`."""

    def __init__(self, run: Callable[[], Any], name: str, seconds: float, what: str) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self.seconds, self.what = seconds, what
        self.given_up = 0.0
        """When it was left alone, by the monotonic clock."""

    @property
    def late(self) -> float:
        """Seconds since it was left alone."""
        return time.monotonic() - self.given_up


def in_time(seconds: float, call: Callable[[], T], name: str, what: str = "") -> T:
    """Makes the call in a thread with this name. After the given seconds it is left alone, and is one of `late`.

    Args:
        what: what is called, such as a URI.

    Raises:
        TimeoutError: the call has not come back. The message says so.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    thread = Call(run, name, seconds, what)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        thread.given_up = time.monotonic()
        thread.name = _late(name)
        raise TimeoutError(f"no answer within {round(seconds, 1):g} s")
    return result.result()


def late(name: str) -> list[Call]:
    """The calls with this name that were left alone and still run, the oldest first."""
    calls = (each for each in threading.enumerate() if isinstance(each, Call) and each.name == _late(name))
    return sorted(calls, key=lambda call: call.given_up)


def _late(name: str) -> str:
    return f"late {name}"
