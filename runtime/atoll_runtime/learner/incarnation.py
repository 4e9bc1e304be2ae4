"""Which incarnation a learner's process is: told by a file that follows its pod's annotation, and used once.

The kubelet restarts a container that ends with an error, at once and alone. What it starts waits here for a greater
number than its predecessor had; the operator gives one to all pods of the unit, and hosts whose processes still run
end them for it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll_runtime import files
from atoll_runtime.contract import EXIT_RESTART, LastWords, UnitContract

WAIT_SECONDS = 900.0
"""For a greater number. The operator's longest back-off is 360 s; after more than that it is down, and the container
ends as its predecessor did, which the operator finds when it is back."""
POLL_SECONDS = 0.25
MEMORY_FILE = "/tmp/last-words"
"""On the pod's own volume."""
MESSAGE_LIMIT = 4000
"""Bytes of last words. The kubelet keeps the last 4096 of a longer message, and so would lose the number."""

log = logging.getLogger(__name__)


class NotRestarted(Exception):
    """No greater number came."""


@dataclass(frozen=True, slots=True)
class Files:
    """How a process and its pod speak to each other."""

    told: Path
    """The number, from the pod's annotation."""
    memory: Path
    """The last words of the container's processes so far; on a volume that outlives them."""
    termination: Path
    """What the kubelet reads when the container has ended; there in a pod only."""


class Incarnation:
    """One process's own number, and what it leaves behind.

    Args:
        number: 0 while none is known.
    """

    def __init__(self, files: Files, number: int = 0) -> None:
        self._files = files
        self.number = number

    def claim(
        self, unit: UnitContract, wait: float = WAIT_SECONDS, poll: float = POLL_SECONDS
    ) -> UnitContract:
        """The contract of this process. What is killed from now on without a word has left its number.

        Raises:
            NotRestarted: no number above the predecessor's came within `wait` seconds.
        """
        if not self._files.told.exists():
            self.number = unit.incarnation
            return unit
        last = self._recall()
        deadline = time.monotonic() + wait
        while (number := self._told()) <= last:
            if time.monotonic() > deadline:
                raise NotRestarted(f"no incarnation after {last} within {wait:g} s: {self._files.told}")
            time.sleep(poll)
        self.number = number
        self.leave("")
        coordinator = _coordinator(unit.coordinator, number - unit.incarnation)
        return unit.model_copy(update={"incarnation": number, "coordinator": coordinator})

    def watch(
        self, end: Callable[[int], None] = os._exit, poll: float = POLL_SECONDS
    ) -> threading.Thread | None:
        """Ends the process as soon as a greater number is told, whatever it is doing: its unit waits for it."""
        if not self._files.told.exists():
            return None
        thread = threading.Thread(target=self._follow, args=(end, poll), name="incarnation", daemon=True)
        thread.start()
        return thread

    def leave(self, text: str) -> None:
        """Last words, `Reason: message` or none, where the kubelet and a successor read them."""
        words = text if not self.number else str(LastWords(self.number, text))
        content = words.encode()[:MESSAGE_LIMIT].decode(errors="ignore").encode()
        if self._files.termination.exists():
            self._files.termination.write_bytes(content)
        if self.number and self._files.told.exists():
            files.replace(self._files.memory, content)

    def _recall(self) -> int:
        """The predecessor's number. Until there is a greater one its last words stand for this process too."""
        if not self._files.memory.exists():
            return 0
        content = self._files.memory.read_bytes()
        last = LastWords.parse(content.decode(errors="replace")).incarnation or 0
        log.info("incarnation %d ended in this pod; waiting for a greater one", last)
        if self._files.termination.exists():
            self._files.termination.write_bytes(content)
        return last

    def _told(self) -> int:
        try:
            text = self._files.told.read_text().strip()
        except OSError:
            return 0  # the kubelet swaps directories under an open path
        return int(text) if text.isdigit() else 0

    def _follow(self, end: Callable[[int], None], poll: float) -> None:
        while (number := self._told()) <= self.number:
            time.sleep(poll)
        log.warning("incarnation %d makes room for %d", self.number, number)
        sys.stdout.flush()
        sys.stderr.flush()
        end(EXIT_RESTART)


def _coordinator(first: str, restarts: int) -> str:
    """`COORDINATOR_PORT` and `SPARE_COORDINATOR_PORT` in turns."""
    host, _, port = first.rpartition(":")
    return f"{host}:{int(port) + restarts % 2}"
