"""Reads Θ of one complete checkpoint tensor by tensor; `GlobalStore.load` would hold the whole model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from atoll_runtime.checkpoint import Bucket, layout, manifest, parts
from atoll_runtime.contract import ModelSpec
from atoll_runtime.export.layouts import ExportError


class Theta:
    """Reads whole tensors from all shards and verifies their checksums. Caches the last one."""

    def __init__(
        self, bucket: Bucket, step: int, model: ModelSpec, parts: Sequence[manifest.PartManifest], digest: str
    ) -> None:
        self.step = step
        self.model = model
        self.digest = digest
        """SHA-256, in hex, of the manifests, which hold a checksum of every tensor."""
        self.shapes = _shapes(parts)
        """Shape of each whole tensor by flat name."""
        self._bucket, self._parts = bucket, parts
        self._held: tuple[str, np.ndarray] | None = None

    @classmethod
    def open(cls, uri: str, step: int | None = None) -> Theta:
        """Reads the manifests of a checkpoint; `step=None` is the newest complete one.

        Raises:
            ExportError: there is no such checkpoint.
            StoreError: the bucket does not answer, or a manifest is damaged.
        """
        bucket = Bucket(uri)
        steps = layout.complete_steps(bucket.list(layout.GLOBAL))
        if not steps:
            raise ExportError(f"{uri}: no complete checkpoint here; a run's spec.checkpoint.uri is wanted")
        if step is not None and step not in steps:
            raise ExportError(f"step {step}: {uri} has {', '.join(map(str, steps))}")
        step = steps[0] if step is None else step
        whole = bucket.read(layout.manifest(step))
        found = manifest.parse(manifest.Manifest, whole, bucket.address(layout.manifest(step)))
        digest = hashlib.sha256(whole)
        shards = parts.find_all(bucket, step, found.shards)
        for shard in shards:
            digest.update(shard.model_dump_json().encode())
        model = manifest.model_of(found.meta, bucket.address(layout.manifest(step)))
        return cls(bucket, step, model, shards, digest.hexdigest())

    def tensor(self, name: str) -> np.ndarray:
        """A float32 tensor. Raises `StoreError` if it is unreadable or its checksum is wrong."""
        if self._held is None or self._held[0] != name:
            self._held = None  # before the next one is read, so that two are never held
            found = parts.tensors(self._bucket, self._parts, ("theta",), {name: ()})
            self._held = name, found["theta"][name]
        return self._held[1]


def _shapes(shards: Sequence[manifest.PartManifest]) -> dict[str, tuple[int, ...]]:
    """Raises `StoreError` if the shards together lack a layer or band of a tensor."""
    depths = parts.depths(shards)
    return {name: entry.whole(depths.get(name, 0)) for part in shards for name, entry in part.tensors.items()}
