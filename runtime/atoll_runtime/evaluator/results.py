"""Results in the bucket: one small object for each evaluated checkpoint, removed with its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Literal

from pydantic import ValidationError

from atoll_runtime.checkpoint import Bucket, layout, manifest
from atoll_runtime.checkpoint.bucket import Damaged
from atoll_runtime.contract import DataSpec, EvaluationReport, EvaluationSpec
from atoll_runtime.data.catalogue import Split

Settings = dict[str, str | int]


def settings(data: DataSpec, spec: EvaluationSpec, split: Split) -> Settings:
    """The data and settings of a measurement. Losses with different ones cannot be compared."""
    return {
        "data": data.uri,
        # It differs for other data at the same URI.
        "contents": hashlib.sha256(split.model_dump_json().encode()).hexdigest(),
        "split": spec.split,
        "tokens": spec.tokens,
        "sequence_length": spec.sequence_length or data.sequence_length,
        "packing": data.packing,
    }


class Stored(manifest.Record):
    """One object in the bucket."""

    format: Literal[2] = 2
    measured: Settings
    completed: float
    """Time of the checkpoint's manifest in Unix seconds. It distinguishes two checkpoints of the same step."""
    result: EvaluationReport


class Results:
    """The results of one kind of measurement. Calls block and raise `StoreError`."""

    def __init__(self, bucket: Bucket, measured: Settings) -> None:
        self._bucket, self._measured = bucket, measured

    def load(self, steps: Collection[int]) -> dict[int, EvaluationReport]:
        """Valid results of these checkpoints by step, newest first."""
        found: dict[int, EvaluationReport] = {}
        for step in sorted(self._steps() & set(steps), reverse=True):
            try:
                stored = Stored.model_validate_json(self._bucket.read(layout.evaluation(step)))
                if stored.measured == self._measured and stored.completed == self.completed(step):
                    found[step] = stored.result
            except (ValidationError, Damaged):
                continue  # of another version, or damaged, or just removed; the checkpoint is evaluated again
        return found

    def save(self, result: EvaluationReport, completed: float) -> None:
        """Writes the result. Replaces one of another measurement."""
        stored = Stored(measured=self._measured, completed=completed, result=result)
        self._bucket.write(layout.evaluation(result.step), stored.model_dump_json().encode())

    def prune(self, steps: Collection[int]) -> None:
        """Removes all results except those of these checkpoints."""
        for step in self._steps() - set(steps):
            self._bucket.delete(layout.evaluation(step))

    def completed(self, step: int) -> float:
        """Unix seconds at which a checkpoint became complete."""
        return manifest.read(manifest.Manifest, self._bucket, layout.manifest(step)).time

    def _steps(self) -> set[int]:
        return layout.evaluated_steps(self._bucket.list(layout.EVALUATIONS))
