"""The event tape: one JSON line for each decision, in files of bounded size on the journal's volume."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LIMIT = 16 << 20
"""Bytes of a file; there are two: the current one and the one before."""


class Tape:
    """Best effort: a full volume ends the tape, not the run."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self._path, self._limit = path, limit
        self._broken = ""

    def write(self, entry: Mapping[str, Any]) -> None:
        """Appends one line; without a sync, so the last lines may be lost with the machine."""
        line = json.dumps({"time": round(time.time(), 3), **entry}, separators=(",", ":")) + "\n"
        try:
            if self._path.exists() and self._path.stat().st_size + len(line) > self._limit:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a") as file:
                file.write(line)
            self._broken = ""
        except OSError as error:
            if str(error) != self._broken:
                log.warning("the event tape cannot be written: %s", error)
            self._broken = str(error)
