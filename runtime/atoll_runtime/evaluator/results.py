"""Results in the bucket: one small object for each evaluated checkpoint, removed with its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Literal

from pydantic import ValidationError

from atoll_runtime.checkpoint import Bucket, layout, manifest
from atoll_runtime.checkpoint.bucket import MissingObject
from atoll_runtime.contract import DataSpec, EvaluationReport, EvaluationSpec
from atoll_runtime.data.catalogue import Split


class Measured(manifest.Record):
    """The data and settings of a measurement. Losses with different settings cannot be compared."""

    data: str
    contents: str
    """Digest of the split's shards and their checksums, which changes when other data is imported at the same URI."""
    split: str
    tokens: int
    sequence_length: int
    packing: str

    @classmethod
    def by(cls, data: DataSpec, spec: EvaluationSpec, split: Split) -> Measured:
        """The measurement that `spec` describes. Uses the length of the run's examples if `spec` gives none."""
        return cls(
            data=data.uri,
            contents=hashlib.sha256(split.model_dump_json().encode()).hexdigest(),
            split=spec.split,
            tokens=spec.tokens,
            sequence_length=spec.sequence_length or data.sequence_length,
            packing=data.packing,
        )


class Stored(manifest.Record):
    """One object in the bucket."""

    format: Literal[2] = 2
    measured: Measured
    completed: float
    """Time of the checkpoint's manifest in Unix seconds. It distinguishes two checkpoints of the same step."""
    result: EvaluationReport


class Results:
    """The results of one kind of measurement. Calls block and raise `StoreError`."""

    def __init__(self, bucket: Bucket, measured: Measured) -> None:
        self._bucket, self._measured = bucket, measured

    def load(self, steps: Collection[int]) -> dict[int, Stored]:
        """Valid results of these checkpoints by step, newest first."""
        found: dict[int, Stored] = {}
        for step in sorted(self._steps() & set(steps), reverse=True):
            try:
                stored = Stored.model_validate_json(self._bucket.read(layout.evaluation(step)))
            except (ValidationError, MissingObject):
                continue  # of another version, or just removed; the checkpoint is evaluated again
            if stored.measured == self._measured and stored.completed == self.completed(step):
                found[step] = stored
        return found

    def save(self, result: EvaluationReport, completed: float) -> Stored:
        """Writes the result. Replaces one of another measurement."""
        stored = Stored(measured=self._measured, completed=completed, result=result)
        self._bucket.write(layout.evaluation(result.step), stored.model_dump_json().encode())
        return stored

    def prune(self, steps: Collection[int]) -> None:
        """Removes all results except those of these checkpoints."""
        for step in self._steps() - set(steps):
            self._bucket.delete(layout.evaluation(step))

    def completed(self, step: int) -> float:
        """Unix seconds at which a checkpoint became complete."""
        return manifest.read(manifest.Manifest, self._bucket, layout.manifest(step)).time

    def _steps(self) -> set[int]:
        return layout.evaluated_steps(self._bucket.list(layout.EVALUATIONS))
