"""What a shard starts from: its journal, else the newest complete checkpoint, else the initial model; and what of its
state is in the bucket."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.contract import RunContract
from atoll_runtime.interfaces import Bucket, Disk
from atoll_runtime.payloads import Cut, Part, Regions, Slice, StoreError
from atoll_runtime.process import Terminal
from atoll_runtime.protocol import restoring
from atoll_runtime.protocol.cuts import GIVEN_UP
from atoll_runtime.protocol.fragments import Array, Layout, Piece, order, translate
from atoll_runtime.protocol.identifiers import CUT_EPOCH
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.state import State, Version
from atoll_runtime.syncer.tape import LIMITS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Everything that a service needs to start."""

    machine: Syncer
    state: State
    journal: Journal
    restarts: int
    """How often this shard has resumed from its journal."""
    newest_cut: int | None
    """Step of the newest checkpoint known to be complete; None before the first."""
    message: str


def recover(
    run: RunContract,
    rules: Rules,
    whole: Layout,
    directory: Path,
    store: Bucket,
    initial: Callable[[], Mapping[str, NDArray[Any]]],
    disk: Disk = LOCAL,
    now: Callable[[], float] = time.time,
) -> Start:
    """Returns the start of one shard. Blocks on disk and bucket.

    Args:
        whole: the layout of all shards.
        now: Unix seconds, of which the machine's clock continues.

    Raises:
        StoreError: the bucket does not answer, or every complete checkpoint in it is damaged. The caller may retry.
        Terminal: journal or checkpoint have another layout, or the volume is too small for the journal.
        JournalError: the volume fails.
    """
    # New in each process and not read from the volume, because a restored volume describes an earlier process.
    series, started = uuid.uuid4().hex, int(now()) - CUT_EPOCH
    layout = whole.shard(rules.shard)
    sizes = tuple(fragment.size for fragment in layout.fragments)
    owner = run.uid if rules.shards == 1 else f"{run.uid}.{rules.shard}-of-{rules.shards}"
    found = Journal.resume(directory, owner, layout, run.outer.codec, LIMITS[run.tape], disk)
    if found is not None:
        journal, held = found
        machine = restoring.restore(rules, sizes, held.machine["machine"], now())
        machine.cuts.started = started
        restarts = int(held.machine["restarts"]) + 1
        newest = held.machine["newest_cut"]
        journal.remember(durable(machine.record(), restarts, newest))
        state = State(layout, run.outer.codec, held.fragments, series)
        message = f"resumed from the journal at global step {machine.step}"
        return Start(machine, state, journal, restarts, newest, message)

    lineage = uuid.uuid4().hex
    cut, skipped = store.newest(own=owned(layout))
    passed_over = "; ".join(map(str, skipped))
    if cut is None:
        if any(each.complete for each in skipped):
            # Acknowledged training must not be thrown away because it cannot be read at the moment.
            raise StoreError(
                f"{store.uri}: no complete checkpoint can be read ({passed_over}); mend or remove them"
            )
        if skipped:
            log.warning("%s: %s: starting from the initial model", store.uri, passed_over)
        theta = initial()
        state = State.from_tensors(layout, run.outer.codec, theta, None, [0] * len(sizes), series)
        machine = restoring.begin(rules, sizes, list(state.versions))
        first = machine.part(machine.cuts.newest)
        store.save_part(part_of(run, rules, layout, machine.step, tuple(state.fragments), first, lineage))
        message = "started from the initial model"
    else:
        check(cut, whole, store.uri)
        versions = translate(cut.versions, whole.split(cut.shards), whole, cut.step)
        own = versions[rules.shard * whole.width : (rules.shard + 1) * whole.width]
        state = State.from_tensors(layout, run.outer.codec, cut.theta, cut.momentum, own, series)
        machine = restored(run, rules, sizes, cut, own, f"{store.uri}/global/{cut.step}", now())
        # That cut is whole, perhaps of other shards or another run. To save a part of it again would destroy it.
        machine.cuts.merges = GIVEN_UP
        message = f"started from the checkpoint of global step {cut.step}"
    machine.cuts.started = started
    newest = None if cut is None else cut.step
    journal = Journal(directory, owner, layout, lineage, LIMITS[run.tape], disk)
    journal.begin(tuple(state.fragments), durable(machine.record(), 0, newest))
    message += f"; {passed_over}" if passed_over else ""
    return Start(machine, state, journal, 0, newest, message)


def durable(record: Mapping[str, Any], restarts: int, newest_cut: int | None) -> dict[str, Any]:
    """Returns what the journal stores: the machine's `record` and two facts that the machine does not know."""
    return {"machine": dict(record), "restarts": restarts, "newest_cut": newest_cut}


def part_of(
    run: RunContract,
    rules: Rules,
    layout: Layout,
    step: int,
    fragments: tuple[Version, ...],
    record: Mapping[str, Any],
    lineage: str,
) -> Part:
    """Returns this shard's part of a cut. `record`: the machine's record."""
    meta = {"run_uid": run.uid, "lineage": lineage, "machine": dict(record)}
    versions = tuple(each.version for each in fragments)
    return Part(step, rules.shard, rules.shards, slices(layout, fragments), versions, meta)


def slices(layout: Layout, fragments: Sequence[Version]) -> dict[str, Slice]:
    """Returns copies of a shard's Θ and momentum by tensor name: its own tensors, layers and bands."""
    held: dict[str, dict[Piece, tuple[Array, Array]]] = {}
    for fragment, version in zip(layout.fragments, fragments, strict=True):
        for (piece, theta), (_, momentum) in zip(
            fragment.cut(version.theta), fragment.cut(version.momentum), strict=True
        ):
            held.setdefault(piece.tensor, {})[piece] = theta, momentum
    return {name: _slice(found) for name, found in sorted(held.items())}


def _slice(held: Mapping[Piece, tuple[Array, Array]]) -> Slice:
    pieces = sorted(held, key=order)
    theta, momentum = (np.stack([held[piece][kind] for piece in pieces]) for kind in (0, 1))
    layers = tuple(piece.index for piece in pieces if piece.index is not None)
    if not layers:
        return Slice(theta[0], momentum[0])
    return Slice(theta, momentum, layers, pieces[0].axis, pieces[0].bands)


def owned(layout: Layout) -> Regions:
    """Returns what a shard reads of a checkpoint: by tensor of its pieces, all of it or its own layers or bands."""
    pieces = sorted((piece for fragment in layout.fragments for piece in fragment.pieces), key=order)
    return {
        name: frozenset(piece.index for piece in own if piece.index is not None) or ()
        for name, own in groupby(pieces, key=lambda piece: piece.tensor)
    }


def meta_of(run: RunContract, whole: Layout) -> dict[str, Any]:
    """Returns the manifest's facts about the run."""
    return {
        "run": run.name,
        "run_uid": run.uid,
        "model": run.model.model_dump(by_alias=True, exclude_none=True),
        "fingerprint": whole.fingerprint,
        "target": target_of(run),
    }


def target_of(run: RunContract) -> dict[str, Any]:
    """Returns the target as the manifest stores it. A finished run whose target was raised continues."""
    return run.target.model_dump(by_alias=True, exclude_none=True)


def check(cut: Cut, layout: Layout, uri: str) -> None:
    """Raises `Terminal` if the checkpoint has another layout."""
    found = cut.meta.get("fingerprint")
    if found != layout.fingerprint:
        raise Terminal(
            "LayoutChanged",
            f"{uri}: the checkpoint of step {cut.step} has fragment layout {str(found)[:12]}, the run "
            f"{layout.fingerprint[:12]}: keep model and outer.fragments, or change checkpoint.uri",
        )


def restored(
    run: RunContract,
    rules: Rules,
    sizes: tuple[int, ...],
    cut: Cut,
    versions: Sequence[int],
    uri: str,
    now: float,
) -> Syncer:
    """Returns the machine as it was at a cut. The cut may have been taken with another number of shards."""
    if cut.meta.get("run_uid") != run.uid:  # of an earlier run: do not fence its units
        return restoring.begin(rules, sizes, list(versions), cut.step)
    # Other shards learn from shard 0 that the run is finished.
    same = rules.shard == COORDINATOR and cut.meta.get("target") == target_of(run)
    machines = cut.meta["machines"]
    return restoring.continued(rules, sizes, machines, versions, cut.step, uri if same else "", now)
