"""Results on the disk: one JSON list, each row a finished trial, written whole and renamed into place."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll_bench.parity.trials import Trial

Row = dict[str, Any]


class StoreError(ValueError):
    """A file that holds no results; names it."""


class Store:
    """The results in one file."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreError` where the file is there and is not a list of rows."""
        self.path = path
        self.rows: list[Row] = []
        if path.exists():
            try:
                self.rows = json.loads(path.read_text())
                self._done = {Trial.of(row): row for row in self.rows}
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError(f"{path}: a list of results is wanted: {error}") from error
        self._done = {Trial.of(row): row for row in self.rows}

    def find(self, trial: Trial) -> Row | None:
        """The trial's row, if it is finished."""
        return self._done.get(trial)

    def add(self, trial: Trial, result: Mapping[str, Any]) -> Row:
        """Keeps a finished trial; in the place of an earlier one that is equal."""
        row = trial.identity() | dict(result)
        if trial in self._done:
            self.rows[self.rows.index(self._done[trial])] = row
        else:
            self.rows.append(row)
        self._done[trial] = row
        self._write()
        return row

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        scratch = self.path.with_suffix(".part")
        with scratch.open("w") as file:
            file.write(f"[\n{lines}\n]\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)
