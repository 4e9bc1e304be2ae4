"""Stores results on disk: a JSON list for the cases and one for the tuning. Each row is a finished trial. A list is
written whole and renamed into place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atoll_bench.parity.trials import Trial
from atoll_cli.errors import CommandError
from atoll_runtime.files import replace

Row = dict[str, Any]
TUNING = "tune"
"""The case of trials that choose a learning rate. It is not a case of the proof."""


class Store:
    """The results of one proof: `path` has the rows of the cases, `…-tuning.json` those that chose its rates."""

    def __init__(self, path: Path) -> None:
        """Raises `CommandError` if a file exists and is not a list of rows."""
        self.path = path
        self._done = {Trial.of(row): row for each in (path, self._tuning) for row in _read(each)}

    @property
    def rows(self) -> list[Row]:
        return list(self._done.values())

    @property
    def _tuning(self) -> Path:
        return self.path.with_name(f"{self.path.stem}-tuning.json")

    def find(self, trial: Trial) -> Row | None:
        return self._done.get(trial)

    def add(self, trial: Trial, result: Mapping[str, Any]) -> Row:
        """Stores a finished trial. It replaces the result of an equal one."""
        row = self._done[trial] = asdict(trial) | dict(result)
        tuning = trial.case == TUNING
        rows = [each for each in self.rows if (each["case"] == TUNING) == tuning]
        _write(self._tuning if tuning else self.path, rows)
        return row


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        rows: list[Row] = json.loads(path.read_text())
        for row in rows:
            Trial.of(row)
    except (ValueError, TypeError, KeyError) as error:
        raise CommandError(f"{path}: a list of results is wanted: {error}") from error
    return rows


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    replace(path, f"[\n{lines}\n]\n".encode())
