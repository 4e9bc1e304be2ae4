"""Complete global checkpoints of a run: save, list, load with checksums, fall back, prune."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll_runtime.checkpoint import arrays, layout, manifest
from atoll_runtime.checkpoint.bucket import Bucket, StoreError


@dataclass(frozen=True, slots=True)
class Cut:
    """The global model between two merges."""

    step: int
    """Global step t."""
    theta: dict[str, np.ndarray]
    """Θ, float32, by flat tensor name."""
    momentum: dict[str, np.ndarray]
    """Outer momentum b, the same names and shapes; empty where it was not loaded."""
    versions: tuple[int, ...]
    """Global step of the last merge of each fragment."""
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `model`, `fingerprint`, and what else the syncer wants back."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was passed over."""

    step: int
    reason: str
    complete: bool = True
    """It has its manifest, so it was whole once."""

    def __str__(self) -> str:
        return f"step {self.step} skipped: {self.reason}"


class GlobalStore:
    """`<uri>/global/<step>/`: Orbax's state, and a manifest, written last, that makes it complete.

    Calls block, raise `StoreError`, and may come from any thread; saves and prunes from one at a time.
    """

    def __init__(self, uri: str) -> None:
        self.bucket = Bucket(uri)

    @property
    def uri(self) -> str:
        """The run's checkpoint root."""
        return self.bucket.uri

    def steps(self) -> list[int]:
        """Complete checkpoints, newest first; one listing."""
        return layout.complete_steps(self.bucket.list(layout.GLOBAL))

    def save(self, cut: Cut) -> None:
        """Writes the arrays, then the manifest; a step that stands there whole already is left as it is."""
        if cut.theta.keys() != cut.momentum.keys():
            odd = sorted(cut.theta.keys() ^ cut.momentum.keys())
            raise StoreError(f"{self.uri}: theta and momentum differ in their tensors: {', '.join(odd)}")
        if self._stands(cut.step):
            return
        entries = {
            name: manifest.TensorEntry(
                shape=theta.shape,
                theta=manifest.checksum(theta),
                momentum=manifest.checksum(cut.momentum[name]),
            )
            for name, theta in cut.theta.items()
        }
        where = self.bucket.address(layout.state(cut.step))
        try:
            arrays.write(where, {"theta": cut.theta, "momentum": cut.momentum})
        except Exception as error:
            # Orbax and tensorstore raise what their drivers raise.
            raise StoreError(f"{where}: cannot be written: {' '.join(str(error).split())}") from error
        whole = manifest.Manifest(
            step=cut.step,
            versions=cut.versions,
            item=layout.state(cut.step),
            time=time.time(),
            tensors=entries,
            meta=cut.meta,
        )
        self.bucket.write(layout.manifest(cut.step), whole.model_dump_json().encode())

    def load(self, step: int, *, momentum: bool = True) -> Cut:
        """Reads and verifies one checkpoint; `momentum=False` leaves the outer momentum in the bucket.

        Raises:
            StoreError: no manifest, unreadable arrays, or a wrong checksum.
        """
        name = layout.manifest(step)
        found = manifest.parse(self.bucket.read(name), self.bucket.address(name))
        theta = self._group(found, "theta")
        return Cut(
            step=found.step,
            theta=theta,
            momentum=self._group(found, "momentum") if momentum else {},
            versions=found.versions,
            meta=found.meta,
        )

    def newest(self, *, momentum: bool = True) -> tuple[Cut | None, list[Skipped]]:
        """The newest checkpoint that loads whole, and those newer ones that do not, with the reason.

        Raises:
            StoreError: the bucket cannot be listed. A bucket without checkpoints is `(None, [...])`.
        """
        paths = self.bucket.list(layout.GLOBAL)
        complete = set(layout.complete_steps(paths))
        skipped: list[Skipped] = []
        for step in layout.all_steps(paths):
            if step not in complete:
                skipped.append(Skipped(step, "half-written: it has no manifest", complete=False))
                continue
            try:
                return self.load(step, momentum=momentum), skipped
            except StoreError as error:
                skipped.append(Skipped(step, str(error)))
        return None, skipped

    def prune(self, keep: int) -> None:
        """Keeps the newest `keep` complete ones; of the rest, the manifest goes first.

        Half-written leftovers older than the newest complete one go too; newer ones may be a save under way.
        """
        paths = self.bucket.list(layout.GLOBAL)
        complete = layout.complete_steps(paths)
        if not complete:
            return
        kept = set(complete[:keep])
        for step in layout.all_steps(paths):
            if step in kept or step > complete[0]:
                continue
            self.bucket.delete(layout.manifest(step))
            self.bucket.delete_tree(layout.step_folder(step))

    def _stands(self, step: int) -> bool:
        """Whether `step` is complete and readable; the manifest of an unreadable one is taken away."""
        if step not in self.steps():
            return False
        try:
            self.load(step)
        except StoreError:
            self.bucket.delete(layout.manifest(step))
            return False
        return True

    def _group(self, found: manifest.Manifest, kind: str) -> dict[str, np.ndarray]:
        where = self.bucket.address(found.item)
        try:
            tensors = arrays.read(where, kind, found.tensors)
        except Exception as error:
            # Orbax and tensorstore raise what their drivers raise.
            raise StoreError(f"{where}: cannot be read: {_first_line(error)}") from error
        manifest.verify(found, "theta" if kind == "theta" else "momentum", tensors)
        return tensors


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
