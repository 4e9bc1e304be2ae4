"""An event loop in simulated time. Processes can be killed between any two callbacks.

Every callback belongs to the process in the context of which it was scheduled. Callbacks of a dead process do not run,
so it ends as by `kill -9`, without its `finally` clauses. Jobs for an executor take simulated seconds and run at one
instant.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Killed(BaseException):
    """The process that runs now has been killed. Unwinds a job that was at work."""


class Process:
    """One process. Once it is dead, its scheduled callbacks do not run. While it is frozen, they are put off."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop, self.alive = loop, True
        self.frozen_until, self.put_off = 0.0, list[asyncio.Handle]()
        """Until when its callbacks are put off, and these."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.at_death: dict[object, Callable[[], None]] = {}
        """Callbacks of other parties for when it dies, by a key of the party's own."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task of this process."""
        task: asyncio.Task[None] = self.loop.create_task(work, context=self.context.copy())
        task.add_done_callback(self._ended, context=self.context)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.loop.failures.append(error)

    def kill(self) -> None:
        """Ends it at this instant."""
        self.alive = False
        notices, self.at_death = list(self.at_death.values()), {}
        for notice in notices:
            notice()


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class SimLoop(asyncio.AbstractEventLoop):
    """`before` is called before each callback with its process, and may kill it. `seconds`: how long a job takes."""

    HOP = 0.003
    """Seconds from a worker back to the event loop."""

    def __init__(
        self,
        seconds: Callable[[Callable[..., Any]], float],
        before: Callable[[Process | None], None] = lambda process: None,
    ) -> None:
        self.now, self.steps = 0.0, 0
        self.outside = copy_context()
        """The context of callbacks that belong to no process."""
        self.failures: list[BaseException] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._before, self._seconds, self._closed = before, seconds, False
        self._ready: deque[asyncio.Handle] = deque()
        self._heap: list[tuple[float, int, asyncio.Handle]] = []
        self._count = 0
        self._free: dict[object, float] = {}
        """When an executor with one worker has done all its jobs."""

    def plan(self, when: float, owner: Process | None, job: Callable[..., Any], *facts: object) -> None:
        """Calls `job` at the time `when`, unless its owner is dead by then. Equal times keep the order of plans."""
        self.call_at(when, job, *facts, context=self.outside if owner is None else owner.context)

    def run_while(self, more: Callable[[], object]) -> bool:
        """Runs callbacks as asyncio would while `more`. Raises the first failure. Returns False if nothing is left."""
        asyncio._set_running_loop(self)
        try:
            while more():
                if self._ready:
                    handle = self._ready.popleft()
                elif self.next_time() is None:
                    return False
                else:
                    self.now, _, handle = heapq.heappop(self._heap)
                process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
                if handle._cancelled or (process is not None and not process.alive):
                    continue
                if process is not None and process.frozen_until > self.now:
                    if not process.put_off:
                        self.call_at(process.frozen_until, self._thaw, process, context=self.outside)
                    process.put_off.append(handle)
                    continue
                self._before(process)
                if process is None or process.alive:
                    self.steps += 1
                    handle._run()
                if self.failures:
                    raise self.failures[0]
        finally:
            asyncio._set_running_loop(None)
        return True

    def _thaw(self, process: Process) -> None:
        self._ready += process.put_off
        process.put_off.clear()

    def run_for(self, seconds: float) -> None:
        """Runs all callbacks of this time."""
        until = self.now + seconds
        self.run_while(lambda: (following := self.next_time()) is not None and following <= until)
        self.now = until

    def next_time(self) -> float | None:
        """Returns when the next callback runs; None when there is none."""
        if self._ready:
            return self.now
        while self._heap and self._heap[0][2]._cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def close(self) -> None:
        """Ends the loop: drops all callbacks, and closes suspended tasks without logging."""
        self._closed = True
        self._ready.clear()
        self._heap.clear()
        # Tasks that a `finally` clause starts go to this loop, which closes them, and not to the thread's loop. Logging
        # is disabled, because everything is torn down in the middle of its work.
        asyncio._set_running_loop(self)
        silent = logging.root.manager.disable
        logging.disable()
        try:
            for task in self.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    end(task.get_coro())
        finally:
            logging.disable(silent)
            asyncio._set_running_loop(None)
        self.tasks.clear()

    # methods that asyncio calls

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = asyncio.Handle(callback, args, self, context)
        self._count += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        if self._closed:
            coro.close()
            return self.create_future()
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > 4096:
            self.tasks = [task for task in self.tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Runs a job on this loop; the executor is not used. Jobs of an executor with one worker run in order."""
        future = self.create_future()
        if self._closed:
            return future
        single = getattr(executor, "_max_workers", 0) == 1
        start = max(self.now, self._free.get(executor, 0.0)) if single else self.now
        end = start + self._seconds(func)
        if single:
            self._free[executor] = end

        def work() -> None:
            try:
                settle, outcome = future.set_result, func(*args)
            except Exception as error:
                settle, outcome = future.set_exception, error
            self.call_later(self.HOP, finish, settle, outcome)

        def finish(settle: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                settle(outcome)

        self.call_at(end, work)
        return future

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: Any) -> None:
        """Keeps exceptions of callbacks. Ignores those that were never retrieved from a future."""
        if "handle" in context and not isinstance(context["exception"], Killed):
            self.failures.append(context["exception"])


def end(coroutine: Any) -> None:
    """Closes a suspended coroutine, even if its `finally` clauses wait for something."""
    for _ in range(10):
        try:
            coroutine.close()
        except BaseException:
            continue
        return
