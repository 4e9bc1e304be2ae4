"""Complete global checkpoints of a run: save, list, load with checksums, fall back, prune."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from atoll_runtime.checkpoint import arrays, layout, manifest
from atoll_runtime.checkpoint.bucket import Bucket, StoreError
from atoll_runtime.sync import clocks


@dataclass(frozen=True, slots=True)
class Cut:
    """The whole global model at a consistent cut."""

    step: int
    """Global step t."""
    theta: dict[str, np.ndarray]
    """Θ, float32, by flat tensor name."""
    momentum: dict[str, np.ndarray]
    """Outer momentum b, the same names and shapes; empty where it was not loaded."""
    versions: tuple[int, ...]
    """Global step of the last merge of each fragment, shard by shard."""
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `model`, `fingerprint`, `machines` (of each shard), and what else the syncer wants back."""
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Slice:
    """What one shard owns of a tensor: whole, or some layers of a stacked one."""

    theta: np.ndarray
    momentum: np.ndarray
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One shard's part of a cut."""

    step: int
    shard: int
    shards: int
    tensors: dict[str, Slice]
    versions: tuple[int, ...]
    meta: dict[str, Any] = field(default_factory=dict)


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
    """`<uri>/global/<step>/`: each shard's arrays and part manifest, and a manifest, last, that makes it complete.

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

    def save_part(self, part: Part) -> None:
        """Writes a shard's arrays, then its manifest; a part that stands there whole is left as it is."""
        if self._stands_whole(part.step, part.shard, part.shards):
            return
        entries = {
            name: manifest.TensorEntry(
                shape=own.theta.shape,
                layers=own.layers,
                theta=manifest.checksum(own.theta),
                momentum=manifest.checksum(own.momentum),
            )
            for name, own in part.tensors.items()
        }
        item = layout.item(part.step, part.shard, part.shards)
        where = self.bucket.address(item)
        tree = {
            "theta": {name: own.theta for name, own in part.tensors.items()},
            "momentum": {name: own.momentum for name, own in part.tensors.items()},
        }
        try:
            arrays.write(where, tree)
        except Exception as error:
            # Orbax and tensorstore raise what their drivers raise.
            raise StoreError(f"{where}: cannot be written: {' '.join(str(error).split())}") from error
        whole = manifest.PartManifest(
            step=part.step,
            shard=part.shard,
            shards=part.shards,
            versions=part.versions,
            item=item,
            time=time.time(),
            tensors=entries,
            meta=part.meta,
        )
        name = layout.part(part.step, part.shard, part.shards)
        self.bucket.write(name, whole.model_dump_json().encode())

    def read_part(self, step: int, shard: int, shards: int) -> Part:
        """Reads a shard's part back, with checksums."""
        found = self._part(step, shard, shards)
        theta, momentum = self._group(found, "theta"), self._group(found, "momentum")
        tensors = {
            name: Slice(theta[name], momentum[name], entry.layers) for name, entry in found.tensors.items()
        }
        return Part(step, shard, shards, tensors, found.versions, found.meta)

    def missing(self, step: int, shards: int) -> list[int]:
        """Shards whose part of the cut does not stand yet; one listing."""
        there = set(self.bucket.list(layout.step_folder(step)))
        return [s for s in range(shards) if layout.part(step, s, shards) not in there]

    def complete(self, step: int, shards: int, meta: dict[str, Any]) -> None:
        """Writes the manifest over all parts, which stand.

        Raises:
            StoreError: a part is missing, or the parts are no consistent cut.
        """
        if self.is_complete(step):
            return
        parts = [self._part(step, s, shards) for s in range(shards)]
        records = {clocks.shard(part.shard): part.meta.get("vector", {}) for part in parts}
        records |= meta.get("marks", {})
        wrong = clocks.inconsistency(records)
        if wrong:
            raise StoreError(f"{self.uri}: step {step} is no consistent cut: {wrong}")
        whole = manifest.Manifest(
            step=step,
            shards=shards,
            versions=tuple(version for part in parts for version in part.versions),
            time=time.time(),
            meta={
                **meta,
                "machines": [part.meta.get("machine", {}) for part in parts],
                "lineages": [part.meta.get("lineage", "") for part in parts],
            },
        )
        self.bucket.write(layout.manifest(step), whole.model_dump_json().encode())

    def is_complete(self, step: int) -> bool:
        """The cut's manifest stands."""
        return layout.manifest(step) in self.bucket.list(layout.step_folder(step))

    def save(self, cut: Cut) -> None:
        """A whole cut of one shard, at once."""
        if cut.theta.keys() != cut.momentum.keys():
            odd = sorted(cut.theta.keys() ^ cut.momentum.keys())
            raise StoreError(f"{self.uri}: theta and momentum differ in their tensors: {', '.join(odd)}")
        own = {name: Slice(theta, cut.momentum[name]) for name, theta in cut.theta.items()}
        self.save_part(Part(cut.step, 0, 1, own, cut.versions))
        self.complete(cut.step, 1, cut.meta)

    def load(self, step: int, *, momentum: bool = True) -> Cut:
        """Reads and verifies one checkpoint; `momentum=False` leaves the outer momentum in the bucket.

        Raises:
            StoreError: no manifest, unreadable arrays, or a wrong checksum.
        """
        name = layout.manifest(step)
        found = manifest.parse(manifest.Manifest, self.bucket.read(name), self.bucket.address(name))
        parts = [self._part(step, s, found.shards) for s in range(found.shards)]
        return Cut(
            step=found.step,
            theta=self._assemble(parts, "theta"),
            momentum=self._assemble(parts, "momentum") if momentum else {},
            versions=found.versions,
            meta=found.meta,
            shards=found.shards,
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

    def _stands_whole(self, step: int, shard: int, shards: int) -> bool:
        """Whether a part is there and readable; the manifests over an unreadable one are taken away."""
        name = layout.part(step, shard, shards)
        if name not in self.bucket.list(layout.step_folder(step)):
            return False
        try:
            self.read_part(step, shard, shards)
        except StoreError:
            self.bucket.delete(layout.manifest(step))
            self.bucket.delete(name)
            return False
        return True

    def _part(self, step: int, shard: int, shards: int) -> manifest.PartManifest:
        name = layout.part(step, shard, shards)
        return manifest.parse(manifest.PartManifest, self.bucket.read(name), self.bucket.address(name))

    def _assemble(
        self, parts: list[manifest.PartManifest], kind: Literal["theta", "momentum"]
    ) -> dict[str, np.ndarray]:
        """One group of arrays of all shards, put together by tensor."""
        whole: dict[str, np.ndarray] = {}
        layers: dict[str, dict[int, np.ndarray]] = {}
        for part in parts:
            for name, value in self._group(part, kind).items():
                own = part.tensors[name].layers
                if own is None:
                    whole[name] = value
                else:
                    layers.setdefault(name, {}).update(zip(own, value, strict=True))
        for name, rows in layers.items():
            if sorted(rows) != list(range(len(rows))):
                raise StoreError(
                    f"{self.uri}: step {parts[0].step}: {name}: layers {sorted(rows)} are not all"
                )
            whole[name] = np.stack([rows[i] for i in range(len(rows))])
        return whole

    def _group(
        self, found: manifest.PartManifest, kind: Literal["theta", "momentum"]
    ) -> dict[str, np.ndarray]:
        where = self.bucket.address(found.item)
        try:
            tensors = arrays.read(where, kind, found.tensors)
        except Exception as error:
            # Orbax and tensorstore raise what their drivers raise.
            raise StoreError(f"{where}: cannot be read: {_first_line(error)}") from error
        manifest.verify(found, kind, tensors)
        return tensors


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
