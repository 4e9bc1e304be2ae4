"""Chooses the state that an incarnation begins with: of a checkpoint or of a peer, the same on every host."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np

from atoll_runtime.checkpoint import Cut, GlobalStore, Regions, StoreError, arrays
from atoll_runtime.checkpoint.units import Moments, UnitSave, UnitStore
from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.peers import Pulled, pull
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import Layout, translate
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.tls import Tls

DEADLINE = 600.0
"""Seconds until a unit without a checkpoint gives up; the syncer may still be writing step 0."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
MOMENTS_ATTEMPTS = 5
"""Reads of the moments while the bucket does not answer. A unit can train without moments."""
NO_STEP = -1
LOOKS = 32
"""At most this many other units are examined for saves if the unit has none of its own. Each costs a few reads."""

log = logging.getLogger(__name__)


class SeedUnavailable(Exception):
    """No complete global checkpoint was available in time."""


@dataclass(frozen=True, slots=True)
class Seed:
    """θ with its versions, AdamW's moments if there are any, and a message about the choice."""

    cut: Cut
    message: str
    moments: Moments | None = None


class Found(msgspec.Struct, frozen=True):
    """What host 0 found, without the arrays; `count` is None if it found nothing."""

    message: str
    count: int | None = None
    versions: tuple[int, ...] = ()
    lineages: tuple[str, ...] = ()
    """The lineages of the versions, by shard."""
    unit: str = ""
    save: tuple[int, int] = (0, 0)
    """Cut of this unit's save and number of hosts that wrote it."""


def from_peer(
    unit: UnitContract,
    layout: Layout,
    agreement: Agreement,
    networks: Sequence[TlsNetwork],
    tls: Tls,
    budget: float,
) -> Seed | str:
    """The state of a healthy peer, or why there is none. Host 0 asks for all hosts, see `pull`."""

    def ask() -> tuple[Found, Pulled | None]:
        pulled, why = pull(unit, layout, networks, tls, budget)
        if pulled is None:
            return Found(f"not seeded from a peer: {why}"), None
        message = _join(f"seeded from peer {pulled.unit} at step {max(pulled.versions)}", why)
        return Found(message, pulled.moments.count, tuple(pulled.versions), pulled.lineages), pulled

    found, pulled = agreement.found_by_first(ask, Found)
    if found.count is None:
        return found.message
    theta = agreement.tensors(layout.shapes, pulled.theta if pulled else {})
    moments = _joined(agreement, layout, pulled.moments if pulled else Moments({}, {}, found.count))
    meta = {"fingerprint": layout.fingerprint, "lineages": list(found.lineages)}
    cut = Cut(max(found.versions), theta, {}, found.versions, meta, layout.shards)
    return Seed(cut, found.message, moments)


def from_checkpoint(
    store: GlobalStore,
    units: UnitStore,
    unit: str,
    layout: Layout,
    agreement: Agreement,
    own: Regions | None = None,
) -> Seed:
    """The newest complete global checkpoint, with the unit's own newest moments or else another unit's.

    Moments are of this run, or of the run that saved the checkpoint.

    Args:
        own: what this host reads of Θ; None: all.

    Raises:
        SeedUnavailable, Terminal: see `find`.
    """
    seed = find(store, layout, agreement, own=own)
    runs = {str(seed.cut.meta.get("run_uid"))}
    moments, message = _moments(units, unit, layout, agreement, runs)
    zero = "moments of zero" if moments is None and seed.cut.step > 0 else ""
    return Seed(seed.cut, _join(seed.message, zero, message), moments)


def _moments(
    units: UnitStore, unit: str, layout: Layout, agreement: Agreement, runs: Collection[str]
) -> tuple[Moments | None, str]:
    """The newest moments, whole on every host, and a message. Host 0 chooses those of which it can read its share. If
    another host cannot read its own, there are none."""
    read = partial(_newest_moments, units, layout, runs, agreement.place)

    def look() -> tuple[Found, UnitSave | None]:
        save, why = read(lambda: _candidates(units, unit))
        if save is None:
            return Found(why), None
        message = _join(f"moments from step {save.cut} of {save.unit}", why)
        return Found(message, save.moments.count, unit=save.unit, save=(save.cut, save.hosts)), save

    found, first = agreement.found_by_first(look, Found)
    if found.count is None:
        return None, found.message
    chosen = (found.unit, dict([found.save]))
    mine, why = agreement.together(lambda: (first, "") if first is not None else read(lambda: [chosen]))
    missing = agreement.extremes(np.array([mine is None], np.int32))[1][0]
    if mine is not None and not missing:
        return _joined(agreement, layout, mine.moments), found.message
    log.warning("%s: not read by every host: %s", found.message, why)
    return None, f"{found.unit} step {found.save[0]}: another host cannot read it"


def find(
    store: GlobalStore,
    layout: Layout,
    agreement: Agreement,
    deadline: float = DEADLINE,
    own: Regions | None = None,
) -> Seed:
    """Waits, with back-off, for the newest complete checkpoint of which every host can read its own part.

    Raises:
        SeedUnavailable: there is none after `deadline` seconds; the message says why.
        Terminal: the checkpoint is of another fragment layout.
    """
    end, backoff = time.monotonic() + deadline, Backoff(FIRST_WAIT, LONGEST_WAIT)
    while True:
        cut, message = _newest(store, own)
        mine = NO_STEP if cut is None else cut.step
        late = time.monotonic() >= end
        low, high = agreement.extremes(np.array([mine, late], np.int32))
        common = int(low[0])
        if common > NO_STEP:
            if mine != common:
                cut = store.load(common, momentum=False, own=own)
                message = _join(message, f"step {common} chosen, which every host can read")
            assert cut is not None
            return Seed(_fitting(cut, layout, store.uri), _join(f"seeded from step {cut.step}", message))
        if high[1]:
            raise SeedUnavailable(f"{store.uri}: no complete checkpoint in {deadline:g} s: {message}")
        log.info("waiting for a checkpoint: %s", message)
        time.sleep(backoff.seconds())


def _newest(store: GlobalStore, own: Regions | None) -> tuple[Cut | None, str]:
    try:
        cut, skipped = store.newest(momentum=False, own=own)
    except StoreError as error:
        return None, str(error)
    if cut is None and not skipped:
        return None, f"{store.uri} holds none yet"
    return cut, "; ".join(str(one) for one in skipped)


def _fitting(cut: Cut, layout: Layout, uri: str) -> Cut:
    """The cut with its versions translated to this run's number of shards. Raises `Terminal` if the layout differs."""
    found = cut.meta.get("fingerprint")
    if found != layout.fingerprint:
        raise Terminal(
            "LayoutChanged",
            f"{uri}: step {cut.step} has the fragment layout {found!r}, this run {layout.fingerprint!r}: "
            "model and outer.fragments must stay as they were",
        )
    if cut.shards == layout.shards:
        return cut
    versions = translate(cut.versions, layout.split(cut.shards), layout, cut.step)
    meta = {**cut.meta, "lineages": []}  # those of other shards do not apply
    return replace(cut, versions=versions, shards=layout.shards, meta=meta)


def _newest_moments(
    units: UnitStore,
    layout: Layout,
    runs: Collection[str],
    share: tuple[int, int],
    candidates: Callable[[], Iterable[tuple[str, Mapping[int, int]]]],
) -> tuple[UnitSave | None, str]:
    """This share of the newest moments, or the reasons why there are none. While the bucket does not answer, tries
    again, and then returns the reason instead of older moments."""
    backoff, why = Backoff(FIRST_WAIT, LONGEST_WAIT), ""
    for attempt in range(MOMENTS_ATTEMPTS):
        if attempt:
            log.info("waiting for moments: %s", why)
            time.sleep(backoff.seconds())
            arrays.settle()  # an attempt that is refused for a late call asks the bucket nothing
        try:
            reasons: list[str] = []
            for name, cuts in candidates():
                save, skipped = units.newest(name, layout, runs, cuts, share)
                reasons += [f"{name} {one}" for one in skipped]
                if save is not None:
                    return save, "; ".join(reasons)
            return None, "; ".join(reasons)
        except StoreError as error:
            why = str(error)
    return None, why


def _candidates(units: UnitStore, unit: str) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Yields units to take moments from, with their cuts: this unit, then the others by their newest cut."""
    yield unit, units.cuts(unit)
    saves = units.saves()
    newest = {
        name: max((cut for cut, hosts in cuts.items() if hosts), default=NO_STEP)
        for name, cuts in saves.items()
        if name != unit
    }
    for name in sorted(newest, key=lambda name: (-newest[name], name))[:LOOKS]:
        yield name, saves[name]


def _joined(agreement: Agreement, layout: Layout, own: Moments) -> Moments:
    """Whole moments on every host, of which each host has its own share."""
    mu, nu = (agreement.tensors(layout.shapes, each) for each in (own.mu, own.nu))
    return Moments(mu, nu, own.count)


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
