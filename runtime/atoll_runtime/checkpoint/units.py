"""A unit's own saves: AdamW's moments and its position. Each host writes its part; all parts make a save complete.

Each host writes a folder of its own, because Orbax would write only on process 0, or wait for all hosts at a barrier.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.checkpoint import arrays, layout, manifest
from atoll_runtime.checkpoint.arrays import Chunked, Request
from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.checkpoint.manifest import HostManifest, PartEntry
from atoll_runtime.checkpoint.store import being_read
from atoll_runtime.payloads import Skipped
from atoll_runtime.protocol.fragments import Array, Layout

KINDS = ("mu", "nu")


@dataclass(frozen=True, slots=True)
class Moments:
    """AdamW's running means of whole tensors, float32, by flat name, and the updates that they have seen."""

    mu: dict[str, Array]
    nu: dict[str, Array]
    count: int


@dataclass(frozen=True, slots=True)
class FragmentPart:
    """One host's [start, stop) of a padded fragment's moments."""

    start: int
    stop: int
    version: int
    """Version of the fragment when its moments were copied."""
    mu: NDArray[np.float32]
    nu: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class UnitSave:
    """A whole save, whatever the number of hosts that wrote it."""

    unit: str
    cut: int
    moments: Moments


class UnitStore:
    """`<uri>/units/<unit>/<cut>/`. Calls block, raise `StoreError`, and may come from any thread.

    Saves of other runs may be at the same URI. Each names its run.

    Args:
        optimizer: whose tensors the moments are; see `HostManifest`.
    """

    def __init__(self, uri: str, run_uid: str, optimizer: str) -> None:
        self.bucket = Bucket(uri)
        self.run_uid, self.optimizer = run_uid, optimizer

    def save(self, facts: HostManifest, parts: Mapping[int, FragmentPart]) -> None:
        """Writes one host's parts, the manifest last. Does not wait for other hosts."""
        item = layout.unit_item(facts.unit, facts.cut, facts.host, facts.hosts)
        own = f"{item}.json"
        there = layout.unit_manifests(self.bucket.list(layout.unit_folder(facts.unit, facts.cut)))
        for path, hosts in there.items():
            if path == own or hosts != facts.hosts:  # of an earlier save, which must not mix with this
                self.bucket.delete(path)
        tree = {kind: {str(n): Chunked(getattr(part, kind)) for n, part in parts.items()} for kind in KINDS}
        item = arrays.write(self.bucket, item, tree, alone=True)
        entries = {
            number: PartEntry(
                start=part.start,
                stop=part.stop,
                version=part.version,
                **{kind: manifest.checksum(getattr(part, kind)) for kind in KINDS},
            )
            for number, part in parts.items()
        }
        whole = facts.model_copy(update={"time": time.time(), "item": item, "parts": entries})
        self.bucket.write(own, whole.model_dump_json().encode())

    def saves(self) -> dict[str, dict[int, int]]:
        """The cuts of each unit, newest first, each with its number of hosts, or with 0 if it is half-written. Lists
        the saves of all units, which takes longer the more units there are."""
        return layout.unit_saves(self.bucket.list(layout.UNITS))

    def cuts(self, unit: str) -> dict[int, int]:
        """As `saves`, for one unit. Lists only its own saves."""
        return layout.unit_saves(self.bucket.list(f"{layout.UNITS}/{unit}")).get(unit, {})

    def newest(
        self, unit: str, wanted: Layout, runs: Collection[str] = (), cuts: Mapping[int, int] | None = None
    ) -> tuple[UnitSave | None, list[Skipped]]:
        """The unit's newest save that loads whole, and those newer ones that are damaged, with the reason.

        Args:
            runs: other runs to take saves from, besides this run; saves of further runs, and those of another
                optimiser, are ignored.
            cuts: the unit's cuts, if they are known; None: they are listed.

        Raises:
            StoreError: the bucket does not answer.
        """
        skipped: list[Skipped] = []
        for cut, hosts in (self.cuts(unit) if cuts is None else cuts).items():
            if not hosts:
                skipped.append(Skipped(cut, "half-written: not every host's manifest stands", complete=False))
                continue
            try:
                parts = self._manifests(unit, cut, hosts)
                if parts[0].run_uid in {self.run_uid, *runs} and parts[0].optimizer == self.optimizer:
                    return self._load(parts, wanted), skipped
            except Damaged as error:
                skipped.append(Skipped(cut, str(error)))
        return None, skipped

    def prune(self, unit: str, keep: int, saved: int, incarnation: int, began: float, now: float) -> None:
        """Keeps the unit's newest `keep` complete saves up to `saved`, and those that another unit may still read, as
        `GlobalStore.prune`; removes the rest, manifests first.

        An incarnation saves its cuts in order, and host 0 has just written `saved`. So a complete save that is newer
        was left by another run or by a history that was rolled back. It is removed once a save up to `saved` is
        complete. Half-written saves older than that one are removed too; newer ones may be under way on other hosts.
        Removes nothing if a later incarnation has saved since `began`, the Unix time at which this one began, because
        the saves then belong to that one. If it saved before `began`, it is of a history that was rolled back.
        """
        saves = self.cuts(unit)
        complete = [cut for cut, hosts in saves.items() if hosts]
        own = [cut for cut in complete if cut <= saved]
        if not own or any(self._succeeded(unit, cut, saves[cut], incarnation, began) for cut in complete):
            return
        kept = {
            *own[:keep],
            *being_read(own, keep, lambda cut: self._manifest(unit, cut, 0, saves[cut]).time, now),
        }
        for cut in saves:
            if cut in kept or (cut > own[0] and cut not in complete):
                continue
            folder = layout.unit_folder(unit, cut)
            for path in layout.unit_manifests(self.bucket.list(folder)):
                self.bucket.delete(path)
            self.bucket.delete_tree(folder)

    def _succeeded(self, unit: str, cut: int, hosts: int, incarnation: int, began: float) -> bool:
        """Whether the save is by a later incarnation of this run, and later than `began`."""
        try:
            first = self._manifest(unit, cut, 0, hosts)
        except Damaged:
            return False
        return first.run_uid == self.run_uid and first.incarnation > incarnation and first.time > began

    def _manifests(self, unit: str, cut: int, hosts: int) -> list[HostManifest]:
        """The manifests of all hosts. Raises `Damaged` if one is missing, or if they are not of one save."""
        parts = [self._manifest(unit, cut, host, hosts) for host in range(hosts)]
        where = self.bucket.address(layout.unit_folder(unit, cut))
        for name in ("run_uid", "incarnation", "inner_step"):
            found = sorted({getattr(part, name) for part in parts})
            if len(found) > 1:
                raise Damaged(f"{where}: hosts of different saves: {name} {found}")
        return parts

    def _load(self, parts: list[HostManifest], wanted: Layout) -> UnitSave:
        """Reads and verifies one save, as whole tensors. Raises `Damaged` also if it is of another layout."""
        first = parts[0]
        where = self.bucket.address(layout.unit_folder(first.unit, first.cut))
        if first.fingerprint != wanted.fingerprint:
            raise Damaged(
                f"{where}: fragment layout {first.fingerprint!r} where {wanted.fingerprint!r} is wanted"
            )
        saved = wanted if first.shards == wanted.shards else wanted.split(first.shards)
        held = self._read(parts)
        moments = Moments({}, {}, max(part.count for part in parts))
        for number, fragment in enumerate(saved.fragments):
            if fragment.size == 0:
                continue
            for kind in KINDS:
                try:
                    flat = tile(held.pop((kind, number), []), fragment.size)  # frees what is copied
                except ValueError as error:
                    raise Damaged(f"{where}: fragment {number}: {error}") from error
                saved.unflatten(number, flat, getattr(moments, kind))
        return UnitSave(first.unit, first.cut, moments)

    def _manifest(self, unit: str, cut: int, host: int, hosts: int) -> HostManifest:
        return manifest.read(HostManifest, self.bucket, f"{layout.unit_item(unit, cut, host, hosts)}.json")

    def _read(self, parts: list[HostManifest]) -> dict[tuple[str, int], list[tuple[int, int, Array]]]:
        """All hosts' parts of each moment of each fragment, verified."""
        chosen = [(part, kind, n, part.parts[n]) for part in parts for n in part.parts for kind in KINDS]
        requests = [
            Request(self.bucket.address(part.item), kind, str(n), (), 4 * (entry.stop - entry.start))
            for part, kind, n, entry in chosen
        ]
        first = parts[0]
        found = arrays.read(requests, lambda: self._manifest(first.unit, first.cut, first.host, first.hosts))
        held: dict[tuple[str, int], list[tuple[int, int, Array]]] = {}
        for (part, kind, n, entry), values in zip(chosen, found, strict=True):
            if manifest.checksum(values) != getattr(entry, kind):
                where = self.bucket.address(part.item)
                raise Damaged(f"{where}: {kind} of fragment {n}: the checksum does not match")
            held.setdefault((kind, n), []).append((entry.start, entry.stop, values))
        return held


def tile(parts: list[tuple[int, int, Array]], size: int) -> Array:
    """`size` elements from (start, stop, values) of all hosts, which must be contiguous. The rest is padding. Raises
    `ValueError` for a gap, an overlap, a part with another length than its bounds, or a value that is not finite."""
    flat, filled = np.empty(size, np.float32), 0
    for start, stop, values in sorted(parts, key=lambda part: part[:2]):
        if start != filled or values.shape != (stop - start,):
            raise ValueError(f"{values.size} elements for [{start}, {stop}) after {filled}")
        end = min(stop, size)
        flat[start:end] = values[: max(0, end - start)]
        filled = stop
    if filled < size:
        raise ValueError(f"{filled} of {size} elements are there")
    if not np.isfinite(flat).all():
        raise ValueError("a value is not finite")
    return flat
