"""Results in the bucket, a small object for each checkpoint: what was evaluated once is not evaluated again.

A result goes when its checkpoint has gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from atoll_runtime.checkpoint import Bucket, layout, manifest
from atoll_runtime.checkpoint.bucket import MissingObject
from atoll_runtime.contract import DataSpec, EvaluationReport, EvaluationSpec
from atoll_runtime.data.catalogue import Split


class Measured(BaseModel):
    """By what a loss was measured: losses of others cannot be compared with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    contents: str
    """Digest of the split's shards and their checksums: data that were imported anew under the same URI are others."""
    split: str
    tokens: int
    sequence_length: int
    packing: str

    @classmethod
    def by(cls, data: DataSpec, spec: EvaluationSpec, split: Split) -> Measured:
        """The length of the run's own examples where `spec` names none."""
        return cls(
            data=data.uri,
            contents=hashlib.sha256(split.model_dump_json().encode()).hexdigest(),
            split=spec.split,
            tokens=spec.tokens,
            sequence_length=spec.sequence_length or data.sequence_length,
            packing=data.packing,
        )


class Stored(BaseModel):
    """One object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    measured: Measured
    completed: float
    """Unix seconds of the checkpoint's manifest: another checkpoint of the same step is another one."""
    skipped: int
    """Checkpoints that had gone before their turn came, up to this one."""
    result: EvaluationReport


class Results:
    """Those of one measure. Calls block and raise `StoreError`."""

    def __init__(self, bucket: Bucket, measured: Measured) -> None:
        self._bucket, self._measured = bucket, measured

    def load(self, steps: Collection[int]) -> dict[int, Stored]:
        """By step, newest first, those of these checkpoints that are still true."""
        found: dict[int, Stored] = {}
        for step in sorted(self._there() & set(steps), reverse=True):
            try:
                stored = Stored.model_validate_json(self._bucket.read(layout.evaluation(step)))
            except (ValidationError, MissingObject):
                continue  # of another version, or just gone: the checkpoint is evaluated again
            if stored.measured == self._measured and stored.completed == self.completed(step):
                found[step] = stored
        return found

    def save(self, result: EvaluationReport, completed: float, skipped: int) -> Stored:
        """Writes the result; replaces one that was measured otherwise."""
        stored = Stored(measured=self._measured, completed=completed, skipped=skipped, result=result)
        self._bucket.write(layout.evaluation(result.step), stored.model_dump_json().encode())
        return stored

    def prune(self, steps: Collection[int]) -> None:
        """Keeps those of these checkpoints."""
        for step in self._there() - set(steps):
            self._bucket.delete(layout.evaluation(step))

    def completed(self, step: int) -> float:
        """Unix seconds at which a checkpoint became complete."""
        name = layout.manifest(step)
        return manifest.parse(manifest.Manifest, self._bucket.read(name), self._bucket.address(name)).time

    def _there(self) -> set[int]:
        return layout.evaluated_steps(self._bucket.list(layout.EVALUATIONS))
