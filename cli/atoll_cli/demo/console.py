"""Progress for people: numbered stages with their seconds, and one line that follows the run."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from atoll_cli.text import seconds

ERASE = "\r\x1b[K"
"""Erases the line on a terminal."""
PLAIN_INTERVAL = 5.0
"""Seconds between two live lines if the output is not a terminal."""


class Console:
    """Writes to `stream` or standard output. Overwrites the live line on a terminal, else prints it at intervals."""

    def __init__(self, stages: int, stream: TextIO | None = None) -> None:
        self.timings: dict[str, float] = {}
        """Seconds of each finished stage, by name."""
        self._stages = stages
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._live_time = 0.0

    @contextmanager
    def stage(self, name: str, title: str) -> Iterator[None]:
        """A stage: its title at the start, its seconds at the end."""
        self.say(f"[{len(self.timings) + 1}/{self._stages}] {title}", indent="")
        started = time.monotonic()
        yield
        self.timings[name] = time.monotonic() - started
        self.say(f"done in {seconds(self.timings[name])}")

    def say(self, text: str, indent: str = "      ") -> None:
        """Print lines that stay."""
        erase = ERASE if self._terminal else ""
        print(erase + "\n".join(indent + line for line in text.splitlines()), file=self._stream, flush=True)

    def live(self, text: str) -> None:
        """Print the line that follows the run."""
        now = time.monotonic()
        stamped = f"      {now - self._started:5.0f} s  {text}"
        if self._terminal:
            shown = stamped[: shutil.get_terminal_size().columns - 1]
            print(ERASE + shown, end="", file=self._stream, flush=True)
        elif now - self._live_time >= PLAIN_INTERVAL:
            self._live_time = now
            print(stamped, file=self._stream, flush=True)
