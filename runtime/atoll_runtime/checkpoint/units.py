"""A unit's own saves: AdamW's moments and its position. Each host writes its part; all parts make a save complete.

Each host writes a folder of its own, because Orbax would write only on process 0, or wait for all hosts at a barrier.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.checkpoint import arrays, layout, manifest
from atoll_runtime.checkpoint.arrays import Chunked, Request
from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.checkpoint.manifest import HostManifest, PartEntry
from atoll_runtime.checkpoint.store import being_read
from atoll_runtime.contract import UnitContract
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
    """A save, whatever the number of hosts that wrote it, or a reader's share of it."""

    unit: str
    cut: int
    hosts: int
    moments: Moments
    """Zero, or missing, outside the share."""


class UnitStore:
    """`<uri>/units/<unit>/<cut>/`. Calls block, raise `StoreError`, and may come from any thread.

    Saves of other runs may be at the same URI. Each names its run.

    Args:
        optimizer: whose tensors the moments are; see `HostManifest`.
    """

    def __init__(self, uri: str, run_uid: str, optimizer: str) -> None:
        self.bucket = Bucket(uri)
        self.run_uid, self.optimizer = run_uid, optimizer

    def save(
        self,
        unit: UnitContract,
        fragments: Layout,
        cut: int,
        inner_step: int,
        count: int,
        parts: Mapping[int, FragmentPart],
    ) -> None:
        """Writes one host's parts, the manifest last. Does not wait for other hosts. Arguments as in `HostManifest`."""
        arrays.ready(self.bucket)  # a save that is refused must remove nothing
        item = layout.unit_item(unit.unit, cut, unit.host, unit.hosts)
        own = f"{item}.json"
        there = layout.unit_manifests(self.bucket.list(layout.unit_folder(unit.unit, cut)))
        for path, hosts in there.items():
            if path == own or hosts != unit.hosts:  # of an earlier save, which must not mix with this
                self.bucket.delete(path)
        tree = {kind: {str(n): Chunked(getattr(part, kind)) for n, part in parts.items()} for kind in KINDS}
        arrays.write(self.bucket, item, tree, alone=True)
        entries = {
            number: PartEntry(
                start=part.start,
                stop=part.stop,
                version=part.version,
                **{kind: manifest.checksum(getattr(part, kind)) for kind in KINDS},
            )
            for number, part in parts.items()
        }
        whole = HostManifest(
            run_uid=self.run_uid,
            unit=unit.unit,
            incarnation=unit.incarnation,
            host=unit.host,
            hosts=unit.hosts,
            cut=cut,
            inner_step=inner_step,
            count=count,
            fingerprint=fragments.fingerprint,
            shards=fragments.shards,
            optimizer=self.optimizer,
            time=time.time(),
            item=item,
            parts=entries,
        )
        self.bucket.write(own, whole.model_dump_json().encode())

    def saves(self) -> dict[str, dict[int, int]]:
        """The cuts of each unit, newest first, each with its number of hosts, or with 0 if it is half-written. Lists
        the saves of all units, which takes longer the more units there are."""
        return layout.unit_saves(self.bucket.list(layout.UNITS))

    def cuts(self, unit: str) -> dict[int, int]:
        """As `saves`, for one unit. Lists only its own saves."""
        return layout.unit_saves(self.bucket.list(f"{layout.UNITS}/{unit}")).get(unit, {})

    def newest(
        self,
        unit: str,
        wanted: Layout,
        runs: Collection[str] = (),
        cuts: Mapping[int, int] | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> tuple[UnitSave | None, list[Skipped]]:
        """The unit's newest save of which this reader's share loads, and those newer ones that are damaged, with the
        reason.

        Args:
            runs: other runs to take saves from, besides this run; saves of further runs, and those of another
                optimiser, are ignored.
            cuts: the unit's cuts, if they are known; None: they are listed.
            share: the number of this reader, and that of all readers, who together read each value once.

        Raises:
            StoreError: the bucket does not answer.
        """
        skipped: list[Skipped] = []
        for cut, hosts in (self.cuts(unit) if cuts is None else cuts).items():
            if not hosts:
                skipped.append(Skipped(cut, "half-written: not every host's manifest stands", complete=False))
                continue
            try:
                first = self._manifest(unit, cut, 0, hosts)
                if first.run_uid in {self.run_uid, *runs} and first.optimizer == self.optimizer:
                    return self._load(first, wanted, share), skipped
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

    def _load(self, first: HostManifest, wanted: Layout, share: tuple[int, int]) -> UnitSave:
        """Reads and verifies a share of one save. Raises `Damaged` also if it is of another layout."""
        where = self.bucket.address(layout.unit_folder(first.unit, first.cut))
        if first.fingerprint != wanted.fingerprint:
            raise Damaged(
                f"{where}: fragment layout {first.fingerprint!r} where {wanted.fingerprint!r} is wanted"
            )
        saved = wanted if first.shards == wanted.shards else wanted.split(first.shards)
        numbers = [number for number, fragment in enumerate(saved.fragments) if fragment.size]
        every = [(host, number) for host in range(first.hosts) for number in numbers]
        reader, readers = share
        mine = every[len(every) * reader // readers : len(every) * (reader + 1) // readers]
        moments, held = Moments({}, {}, first.count), self._read(first, saved, mine)
        while held:
            (kind, number), parts = held.popitem()  # frees what is copied
            for start, values in parts:
                saved.unflatten(number, values, getattr(moments, kind), start)
        return UnitSave(first.unit, first.cut, first.hosts, moments)

    def _manifest(self, unit: str, cut: int, host: int, hosts: int) -> HostManifest:
        return manifest.read(HostManifest, self.bucket, f"{layout.unit_item(unit, cut, host, hosts)}.json")

    def _read(
        self, first: HostManifest, saved: Layout, mine: Sequence[tuple[int, int]]
    ) -> dict[tuple[str, int], list[tuple[int, Array]]]:
        """These hosts' parts of fragments, verified: by moment and fragment, each with its start."""
        unit, cut, hosts = first.unit, first.cut, first.hosts
        where = self.bucket.address(layout.unit_folder(unit, cut))
        wanted = sorted({host for host, _ in mine})
        parts = {host: self._manifest(unit, cut, host, hosts) if host else first for host in wanted}
        for name in ("run_uid", "incarnation", "inner_step"):
            found = sorted({getattr(part, name) for part in (first, *parts.values())})
            if len(found) > 1:
                raise Damaged(f"{where}: hosts of different saves: {name} {found}")
        length = {number: entry.stop for number, entry in first.parts.items()}
        for host, number in mine:
            each, size = length.get(number, 0), saved.fragments[number].size
            entry = parts[host].parts.get(number)
            bounds = (entry.start, entry.stop) if entry else (0, 0)
            if bounds != (host * each, (host + 1) * each) or hosts * each < size:
                raise Damaged(f"{where}: fragment {number}: host {host} has {bounds} of {size} elements")
        chosen = [(parts[host], kind, n, parts[host].parts[n]) for host, n in mine for kind in KINDS]
        requests = [
            Request(self.bucket.address(part.item), kind, str(n), (), 4 * (entry.stop - entry.start))
            for part, kind, n, entry in chosen
        ]
        read = arrays.read(requests, lambda: self._manifest(unit, cut, first.host, hosts))
        held: dict[tuple[str, int], list[tuple[int, Array]]] = {}
        for (part, kind, n, entry), values in zip(chosen, read, strict=True):
            what = f"{self.bucket.address(part.item)}: {kind} of fragment {n}"
            if values.shape != (length[n],) or manifest.checksum(values) != getattr(entry, kind):
                raise Damaged(f"{what}: the checksum does not match")
            if not np.isfinite(values).all():
                raise Damaged(f"{what}: a value is not finite")
            held.setdefault((kind, n), []).append((entry.start, values))
        return held
