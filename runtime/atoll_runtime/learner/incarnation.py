"""Determines the incarnation of a learner's process. A file that follows its pod's annotation holds the number.

Each number is used once. When a container ends with an error, the kubelet restarts it at once, without the others. The
new process waits here for a greater number than that of its predecessor. The operator gives one to all pods of the
unit, and processes that still run end when they see it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from atoll_runtime import files
from atoll_runtime.contract import EXIT_RESTART, LastWords, UnitContract

WAIT_SECONDS = 900.0
"""Longest wait for a greater number. The operator's longest back-off is 360 s, so after a longer wait it is down. The
container then ends as its predecessor did, and the operator finds that when it is back."""
POLL_SECONDS = 0.25
MEMORY_FILE = "/tmp/last-words"
"""On the pod's own volume."""
MESSAGE_LIMIT = 4000
"""Bytes of last words. The kubelet keeps the last 4096 of a longer message, and would lose the number."""

log = logging.getLogger(__name__)


class NotRestarted(Exception):
    """No greater number came in time."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files through which a process and its pod communicate."""

    told: Path
    """The incarnation's number, from the pod's annotation."""
    memory: Path
    """The last words of the container's processes so far; on a volume that outlives them."""
    termination: Path
    """What the kubelet reads when the container has ended; exists only in a pod."""


class Incarnation:
    """The number of one process, and the last words that it leaves."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.number = 0
        """0 while it is unknown."""

    def claim(
        self, unit: UnitContract, wait: float = WAIT_SECONDS, poll: float = POLL_SECONDS
    ) -> UnitContract:
        """The contract of this process. Leaves the number at once, in case the process is killed without last words.

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

    def watch(self, poll: float = POLL_SECONDS) -> None:
        """Ends the process at once when there is a greater number, whatever it is doing, because its unit waits."""
        if self._files.told.exists():
            threading.Thread(target=self._follow, args=(poll,), name="incarnation", daemon=True).start()

    def leave(self, text: str) -> None:
        """Writes last words, `Reason: message` or none, to where the kubelet and a successor read them."""
        words = text if not self.number else str(LastWords(self.number, text))
        content = words.encode()[:MESSAGE_LIMIT].decode(errors="ignore").encode()
        if self._files.termination.exists():
            self._files.termination.write_bytes(content)
        if self.number and self._files.told.exists():
            files.replace(self._files.memory, content)

    def _recall(self) -> int:
        """The predecessor's number. Its last words also stand for this process until there is a greater number."""
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

    def _follow(self, poll: float) -> None:
        while (number := self._told()) <= self.number:
            time.sleep(poll)
        log.warning("incarnation %d makes room for %d", self.number, number)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_RESTART)


def _coordinator(first: str, restarts: int) -> str:
    """Alternates between `COORDINATOR_PORT` and `SPARE_COORDINATOR_PORT`."""
    host, _, port = first.rpartition(":")
    return f"{host}:{int(port) + restarts % 2}"
