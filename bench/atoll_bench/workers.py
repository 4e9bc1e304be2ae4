"""New processes that measure for this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from atoll_cli.errors import CommandError


@contextmanager
def workers(
    count: int, killed: str, begin: Callable[..., object] | None = None, told: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Ends them with the context, whatever they do then. Each begins with `begin(*told)`.

    Raises:
        CommandError: one was killed before, with the message `killed`.
    """
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), begin, told) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise CommandError(killed) from error
        finally:  # the pool itself would begin what is left, and wait for it
            for process in multiprocessing.active_children():
                process.kill()
