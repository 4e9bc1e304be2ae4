"""What a syncer starts from: its journal, else the newest complete checkpoint, else the initial model."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from atoll_runtime.checkpoint import Cut, Skipped, StoreError
from atoll_runtime.contract import RunContract
from atoll_runtime.sync.fragments import Layout
from atoll_runtime.sync.rounds import Syncer
from atoll_runtime.sync.rules import Rules
from atoll_runtime.syncer.errors import Terminal
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.state import State, Version, tensors

log = logging.getLogger(__name__)


class Store(Protocol):
    """What the syncer needs of `GlobalStore`."""

    @property
    def uri(self) -> str: ...
    def save(self, cut: Cut) -> None: ...
    def load(self, step: int) -> Cut: ...
    def newest(self) -> tuple[Cut | None, list[Skipped]]: ...
    def prune(self, keep: int) -> None: ...


@dataclass(frozen=True)
class Start:
    """Everything that a service needs to go on."""

    machine: Syncer
    state: State
    journal: Journal
    restarts: int
    """Times that this run's syncer resumed from its journal."""
    newest_cut: int | None
    """Step of the newest checkpoint known to be complete."""
    message: str


def recover(
    run: RunContract,
    rules: Rules,
    layout: Layout,
    directory: Path,
    store: Store,
    initial: Callable[[], Mapping[str, NDArray[Any]]],
) -> Start:
    """Blocks on disk and bucket.

    Raises:
        StoreError: the bucket, or every complete checkpoint in it, cannot be read now; worth another try.
        Terminal: journal or checkpoint are of another layout.
        JournalError: the volume fails.
    """
    sizes = tuple(fragment.size for fragment in layout.fragments)
    found = Journal.resume(directory, run.uid, layout, run.outer.codec)
    if found is not None:
        journal, replay = found
        machine = Syncer.restore(rules, sizes, replay.machine["machine"])
        restarts = int(replay.machine["restarts"]) + 1
        newest = replay.machine["newest_cut"]
        journal.remember(durable(machine.record(), restarts, newest))
        state = State(layout, run.outer.codec, replay.fragments)
        message = f"resumed from the journal at global step {machine.step}"
        return Start(machine, state, journal, restarts, newest, message)

    cut, skipped = store.newest()
    message = "; ".join(str(each) for each in skipped)
    if cut is None:
        if any(each.complete for each in skipped):
            # What was acknowledged as trained must not be thrown away because it cannot be read just now.
            raise StoreError(
                f"{store.uri}: no complete checkpoint can be read ({message}); mend or remove them"
            )
        if skipped:
            log.warning("%s: %s: starting from the initial model", store.uri, message)
        theta = initial()
        state = State.from_tensors(layout, run.outer.codec, theta, None, [0] * len(sizes))
        machine = Syncer(rules, sizes, list(state.versions))
        cut = cut_of(run, layout, state.snapshot(), machine.record())
        store.save(cut)
        message = join("started from the initial model", message)
    else:
        check(cut, layout, store.uri)
        state = State.from_tensors(layout, run.outer.codec, cut.theta, cut.momentum, cut.versions)
        machine = restored(run, rules, sizes, cut)
        message = join(f"started from the checkpoint of global step {cut.step}", message)
    journal = Journal(directory, run.uid, layout, uuid.uuid4().hex)
    journal.begin(state.snapshot(), durable(machine.record(), 0, cut.step))
    return Start(machine, state, journal, 0, cut.step, message)


def durable(record: Mapping[str, Any], restarts: int, newest_cut: int | None) -> dict[str, Any]:
    """The facts that go into the journal with the machine's `record`."""
    return {"machine": dict(record), "restarts": restarts, "newest_cut": newest_cut}


def cut_of(
    run: RunContract, layout: Layout, fragments: tuple[Version, ...], record: Mapping[str, Any]
) -> Cut:
    """A consistent cut of the run, for the bucket; `record` is the machine's."""
    theta, momentum = tensors(layout, fragments)
    meta = {
        "run": run.name,
        "run_uid": run.uid,
        "model": run.model.model_dump(by_alias=True, exclude_none=True),
        "fingerprint": layout.fingerprint,
        "machine": dict(record),
    }
    return Cut(record["step"], theta, momentum, tuple(each.version for each in fragments), meta)


def check(cut: Cut, layout: Layout, uri: str) -> None:
    """Raises `Terminal` for a checkpoint of another layout."""
    found = cut.meta.get("fingerprint")
    if found != layout.fingerprint:
        raise Terminal(
            "LayoutChanged",
            f"{uri}: the checkpoint of step {cut.step} has fragment layout {str(found)[:12]}, the run "
            f"{layout.fingerprint[:12]}: keep model and outer.fragments, or change checkpoint.uri",
        )


def restored(run: RunContract, rules: Rules, sizes: tuple[int, ...], cut: Cut) -> Syncer:
    """The machine as of a cut. Its record may be a merge ahead of the arrays, whose versions count."""
    if cut.meta.get("run_uid") != run.uid:  # an earlier run's model; its units are not ours to fence
        return Syncer(rules, sizes, list(cut.versions), step=cut.step)
    record = dict(cut.meta["machine"])
    record["versions"] = list(cut.versions)
    record["history"] = [[version] for version in cut.versions]
    record["final"] = ""
    # A new lineage begins: every unit receives every fragment anew, so no anchor is spent.
    record["units"] = {name: {**unit, "spent": [], "marks": []} for name, unit in record["units"].items()}
    return Syncer.restore(rules, sizes, record)


def join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
