"""Calls of libraries that cannot be interrupted, in bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_time(seconds: float, call: Callable[[], T], name: str) -> T:
    """Makes the call in a thread with this name. After the given seconds it is left alone, and `late` counts it.

    Raises:
        TimeoutError: the call has not come back. The message says so.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        thread.name = _late(name)
        raise TimeoutError(f"no answer within {round(seconds, 1):g} s")
    return result.result()


def late(name: str) -> int:
    """How many calls with this name were left alone and still run."""
    return sum(thread.name == _late(name) for thread in threading.enumerate())


def _late(name: str) -> str:
    return f"late {name}"
