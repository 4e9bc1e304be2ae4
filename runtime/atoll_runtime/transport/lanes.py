"""Threads that carry bodies over many sockets: a slow connection costs no thread.

What a connection does is a generator, a job. It yields what it waits for: a socket (`Ready`), seconds (0 lets others go
first), or a future. TLS gives the interpreter's lock back while it works, so several lanes use several cores.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""Between two looks at which jobs have waited too long."""
MOST_EVENTS = 256
"""Sockets that are looked after in one turn."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Waits until a socket is ready: `select.EPOLLIN` or `EPOLLOUT`. After `seconds` the job gets a TimeoutError."""

    fd: int
    event: int
    seconds: float


Wait = Ready | float | Future[Any]
Job = Generator[Wait, None, None]


class Lane(threading.Thread):
    """One thread with its jobs."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._epoll = select.epoll()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._due: deque[Job] = deque()
        self._waiting: dict[int, tuple[Job, float]] = {}
        """By socket, with the time at which the job has waited too long."""
        self._asleep: list[tuple[float, int, Job]] = []
        self._jobs: set[Job] = set()
        self._number, self._swept, self._ended = itertools.count(), 0.0, False
        self.start()

    def begin(self, job: Job) -> None:
        """Goes on with a job, in any thread."""
        self._due.append(job)
        self._wake()

    def end(self) -> None:
        """Closes all jobs; returns at once."""
        self._ended = True
        self._wake()

    def run(self) -> None:
        """The thread."""
        while not self._ended:
            for fd, _ in self._epoll.poll(self._pause(), MOST_EVENTS):
                if fd == self._woken.fileno():
                    self._woken.recv(MOST_EVENTS)
                elif (found := self._waiting.pop(fd, None)) is not None:
                    self._advance(found[0])
            for _ in range(len(self._due)):
                self._advance(self._due.popleft())
            self._look_at_times(time.monotonic())
        for job in [*self._jobs, *self._due]:
            job.close()
        for each in (self._epoll, self._waker, self._woken):
            each.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or has ended
            self._waker.send(b"\0")

    def _pause(self) -> float:
        if self._due:
            return 0.0
        first = self._asleep[0][0] - time.monotonic() if self._asleep else SWEEP_SECONDS
        return min(max(first, 0.0), SWEEP_SECONDS)

    def _look_at_times(self, now: float) -> None:
        while self._asleep and self._asleep[0][0] <= now:
            self._advance(heapq.heappop(self._asleep)[2])
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            for fd in [fd for fd, (_, deadline) in self._waiting.items() if deadline <= now]:
                self._advance(self._waiting.pop(fd)[0], TimeoutError("the other end is silent"))

    def _advance(self, job: Job, error: Exception | None = None) -> None:
        self._jobs.add(job)
        try:
            wait = next(job) if error is None else job.throw(error)
        except StopIteration:
            self._jobs.discard(job)
        except Exception:
            self._jobs.discard(job)
            log.exception("a connection failed")
        else:
            try:
                self._wait(job, wait)
            except OSError as lost:  # the job has closed its socket
                self._advance(job, lost)

    def _wait(self, job: Job, wait: Wait) -> None:
        if isinstance(wait, Ready):
            event = wait.event | select.EPOLLONESHOT
            try:
                self._epoll.modify(wait.fd, event)
            except FileNotFoundError:
                self._epoll.register(wait.fd, event)
            self._waiting[wait.fd] = job, time.monotonic() + wait.seconds
        elif isinstance(wait, Future):
            wait.add_done_callback(lambda _: self.begin(job))
        elif wait:
            heapq.heappush(self._asleep, (time.monotonic() + wait, next(self._number), job))
        else:
            self._due.append(job)


class Lanes:
    """Several lanes; jobs go to them in turns."""

    def __init__(self, name: str, most: int = 8) -> None:
        cores = len(os.sched_getaffinity(0))
        self._lanes = [Lane(f"{name}-{number}") for number in range(min(cores, most))]
        self._turns = itertools.cycle(self._lanes)

    def begin(self, job: Job) -> None:
        """In any thread."""
        next(self._turns).begin(job)

    def close(self, seconds: float = 5.0) -> None:
        """Closes all jobs. Blocks for `seconds` at most."""
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.join(seconds)
