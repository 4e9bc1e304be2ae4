"""Complete global checkpoints of a run: save, list, load with checksums, fall back, prune."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from atoll_runtime.checkpoint import arrays, layout, manifest, parts
from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.checkpoint.parts import Kind
from atoll_runtime.payloads import Cut, Part, Regions, Skipped, Slice, StoreError

READING_SECONDS = 600.0
"""Minimum time for a reader of the newest checkpoint. A unit tries to be seeded from one for as long."""
MOST_KEPT = 4
"""Maximum number of checkpoints to keep, as a multiple of `keep`, if cuts are so frequent that more are younger."""


class GlobalStore:
    """`<uri>/global/<step>/`: each shard's arrays and part manifest, and a manifest, last, that makes it complete.

    Calls block, raise `StoreError`, and may come from any thread; saves and prunes only from one at a time.

    Args:
        along: the axis along which a unit's hosts split a tensor, by name, so that each can read its own share of what
            is saved; see `atoll_runtime.model.along`.
    """

    def __init__(self, uri: str, along: Mapping[str, int] | None = None) -> None:
        self.bucket, self._along = Bucket(uri), along or {}

    @property
    def uri(self) -> str:
        """The run's checkpoint root."""
        return self.bucket.uri

    def steps(self) -> list[int]:
        """Complete checkpoints, newest first; one listing."""
        return layout.complete_steps(self.bucket.list(layout.GLOBAL))

    def ready(self) -> None:
        """Raises `StoreError` while a call that was given up still runs. Until then nothing can be saved."""
        arrays.ready(self.bucket)

    def save_part(self, part: Part) -> bool:
        """Writes a shard's arrays, then its manifest. Leaves a part that is complete and the same as it is.

        Removes what another run, or an earlier life of the shard's journal, left of this step. If the same cut is
        complete with another part of this shard, keeps it and returns `False`.
        """
        self.ready()  # a save that is refused must remove nothing
        entries = parts.entries_of(part, self._along)
        if (kept := self._kept(part, entries)) is not None:
            return kept
        there = self.bucket.list(layout.step_folder(part.step))
        for path in (layout.manifest(part.step), parts.name_of(part)):
            if path in there:
                self.bucket.delete(path)
        parts.write(self.bucket, part, entries)
        return True

    def read_part(self, step: int, shard: int, shards: int) -> Part:
        """Reads a shard's part back, with checksums."""
        return parts.read(self.bucket, parts.find(self.bucket, step, shard, shards))

    def complete(self, step: int, shards: int, meta: dict[str, Any]) -> None:
        """Writes the manifest that covers all parts. Raises `StoreError` if one is missing, or if they are not all of
        one cut of this run."""
        if self.is_complete(step):
            return
        found = parts.find_all(self.bucket, step, shards)
        if wrong := _mixture(found, meta.get("run_uid")):
            raise StoreError(f"{self.uri}: step {step} is no consistent cut: {wrong}")
        whole = manifest.Manifest(
            step=step,
            shards=shards,
            versions=tuple(version for part in found for version in part.versions),
            time=time.time(),
            meta=meta,
        )
        self.bucket.write(layout.manifest(step), whole.model_dump_json().encode())

    def is_complete(self, step: int) -> bool:
        """Whether the cut's manifest exists and is not damaged."""
        try:
            self._manifest(step)
        except Damaged:
            return False
        return True

    def save(self, cut: Cut) -> None:
        """Saves a whole cut of a run with one shard."""
        own = {name: Slice(theta, cut.momentum[name]) for name, theta in cut.theta.items()}
        self.save_part(Part(cut.step, 0, 1, own, cut.versions, {"run_uid": cut.meta.get("run_uid")}))
        self.complete(cut.step, 1, cut.meta)

    def load(self, step: int, *, momentum: bool = True, own: Regions | None = None) -> Cut:
        """Reads and verifies one checkpoint; `momentum=False` leaves the outer momentum in the bucket.

        Args:
            own: what is read of Θ and momentum, by tensor; None: all. The rest has arbitrary values, or is missing.

        Raises:
            Damaged: no manifest, unreadable arrays, or a wrong checksum.
            StoreError: the bucket does not answer.
        """
        found = self._manifest(step)
        shards = parts.find_all(self.bucket, step, found.shards)
        kinds: tuple[Kind, ...] = ("theta", "momentum") if momentum else ("theta",)
        held = parts.tensors(self.bucket, shards, kinds, own)
        whole = held["theta"], held.get("momentum", {})
        history = {
            "machines": [part.meta.get("machine", {}) for part in shards],
            "lineages": [part.meta.get("lineage", "") for part in shards],
        }
        return Cut(found.step, *whole, found.versions, found.meta | history, found.shards)

    def newest(
        self, *, momentum: bool = True, own: Regions | None = None
    ) -> tuple[Cut | None, list[Skipped]]:
        """The newest checkpoint that loads, and those newer ones that are damaged, with the reason; see `load`.

        Raises:
            StoreError: the bucket does not answer. A bucket without checkpoints is `(None, [...])`.
        """
        paths = self.bucket.list(layout.GLOBAL)
        complete = set(layout.complete_steps(paths))
        skipped: list[Skipped] = []
        for step in layout.all_steps(paths):
            if step not in complete:
                skipped.append(Skipped(step, "half-written: it has no manifest", complete=False))
                continue
            try:
                return self.load(step, momentum=momentum, own=own), skipped
            except Damaged as error:
                skipped.append(Skipped(step, str(error)))
        return None, skipped

    def prune(self, keep: int, saved: int, now: float) -> None:
        """Keeps the newest `keep` complete checkpoints up to `saved`, just completed. Of the rest, manifests go first.

        Also keeps those that were the newest less than `READING_SECONDS` before `now`, in Unix seconds, because a
        reader may still use them. They are few if cuts are rare. With them it keeps MOST_KEPT times `keep` at most.
        A checkpoint newer than `saved` is of a history that was rolled back, perhaps because it cannot be read. It
        stays, because the run reaches its step again, and does not count for `keep`. Half-written checkpoints older
        than the newest that is kept are removed too; newer ones may be a save under way.
        """
        paths = self.bucket.list(layout.GLOBAL)
        own = [step for step in layout.complete_steps(paths) if step <= saved]
        if not own:
            return
        kept = {*own[:keep], *being_read(own, keep, lambda step: self._manifest(step).time, now)}
        for step in layout.all_steps(paths):
            if step in kept or step > own[0]:
                continue
            self.bucket.delete(layout.manifest(step))
            self.bucket.delete_tree(layout.step_folder(step))

    def _manifest(self, step: int) -> manifest.Manifest:
        return manifest.read(manifest.Manifest, self.bucket, layout.manifest(step))

    def _kept(self, part: Part, entries: dict[str, manifest.TensorEntry]) -> bool | None:
        """Whether the stored part is the same as this one. None: it cannot be kept, because it is not of this cut, is
        damaged, or is another one (of before the shard's journal was lost or restored) in a cut that is not complete.
        """
        try:
            found = parts.find(self.bucket, part.step, part.shard, part.shards)
            if (found.meta.get("run_uid"), _cut(found)) != (part.meta.get("run_uid"), _cut(part)):
                return None
            lineages = found.meta.get("lineage"), part.meta.get("lineage")
            same = (found.versions, found.tensors, lineages[0]) == (part.versions, entries, lineages[1])
            if not same and self._manifest(part.step).shards != part.shards:
                return None
            parts.read(self.bucket, found)
        except Damaged:
            return None
        return same


def being_read(steps: Sequence[int], keep: int, written: Callable[[int], float], now: float) -> Iterator[int]:
    """Of complete saves, newest first, those after the newest `keep` whose successor was written less than
    `READING_SECONDS` before `now`. With the newest, they are MOST_KEPT times `keep` at most."""
    for successor, step in pairwise(steps[keep - 1 : MOST_KEPT * keep]):
        try:
            if now - written(successor) >= READING_SECONDS:
                return
        except Damaged:
            return
        yield step


def _cut(part: Part | manifest.PartManifest) -> object:
    """Step, and whether the cut is final. In two lives of shard 0, both kinds of cut may begin at the same step."""
    return part.meta.get("machine", {}).get("cut")


def _mixture(found: Sequence[manifest.PartManifest], run: object) -> str:
    """Why these parts are not all of one cut of this run; empty if they are."""
    for part in found:
        other = part.meta.get("run_uid")
        if other != run:
            return f"the part of shard {part.shard} is of run {other!r}, this cut of run {run!r}"
    cuts = sorted(str(_cut(part)) for part in found)
    if cuts[0] != cuts[-1]:
        return f"the parts are of cuts {cuts[0]} and {cuts[-1]}"
    return ""
