"""Creates a shard's machine: a new one, or one restored from the record of its journal or of a cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import convert

from atoll_runtime.protocol.coordinator import Coordinator, Follower
from atoll_runtime.protocol.cuts import Cuts
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.protocol.ledger import Account, carried
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Orders
from atoll_runtime.protocol.norms import Norms
from atoll_runtime.protocol.rounds import Rounds
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.versions import Versions


def begin(rules: Rules, sizes: tuple[int, ...], versions: list[int], step: int = 0) -> Syncer:
    """A machine that starts from these versions, with no known unit and no round in flight."""
    if not len(versions) == len(sizes) == rules.fragments:
        raise ValueError(f"outer.fragments: {rules.fragments}, but the state holds {len(versions)} versions")
    kind = Coordinator if rules.shard == COORDINATOR else Follower
    known = [Versions(p, size, [versions[p]]) for p, size in enumerate(sizes)]
    cuts = Cuts(rules.cut_interval, CutId(0, step))
    machine = kind(rules, Rounds(rules, known), cuts, max(step, *versions))
    if machine.coordinates:
        machine.orders = Orders(step=machine.step, cut=cuts.newest)
    machine.committed = machine.record()
    return machine


def restore(rules: Rules, sizes: tuple[int, ...], record: Mapping[str, Any], now: float) -> Syncer:
    """The machine of `record`, with no connected host and no round in flight.

    Args:
        now: of the machine's clock. Later times in the record are of a clock that was wrong, and count as unknown.
    """
    machine = begin(rules, sizes, list(record["versions"]), record["step"])
    rounds = machine.rounds
    rounds.merges, rounds.last_quorum = record["merges"], record["last_quorum"]
    for versions, history in zip(rounds.versions, record["history"], strict=True):
        versions.history = list(history)
    for versions, each in zip(rounds.versions, convert(record["norms"], list[Norms]), strict=False):
        versions.norms = each
    rounds.units = convert(record["units"], dict[str, Unit], str_keys=True)
    times = [convert(each, dict[int, float], str_keys=True) for each in record["since"]]
    for versions, since in zip(rounds.versions, times, strict=False):
        versions.since = {version: at for version, at in since.items() if at <= now}
    for unit in rounds.units.values():
        unit.present_since = unit.present_since if unit.present_since <= now else 0.0
    known = [
        *(at for each in times for at in each.values()),
        *(unit.present_since for unit in machine.units.values()),
    ]
    rounds.away = max((at for at in known if at <= now), default=now), now
    rounds.quickest = record["quickest"]
    machine.final = record["final"]
    machine.cuts.newest = CutId(*record["cut"])
    machine.cuts.merges = record["cut_merges"]
    if machine.coordinates:
        # A final cut that was being saved is given up. Shard 0 begins another one when every shard is done.
        cut = replace(machine.cuts.newest, final=False)
        machine.orders = Orders(max(record["clock"], machine.step), cut=cut, final=machine.final)
    machine.committed = machine.record()
    return machine


def continued(
    rules: Rules,
    sizes: tuple[int, ...],
    machines: Sequence[Mapping[str, Any]],
    versions: Sequence[int],
    step: int,
    uri: str,
    now: float,
) -> Syncer:
    """The beginning of another lineage: a machine that continues from a cut of any number of shards.

    Args:
        machines: records of all shards in the cut.
        versions: those of this shard's fragments in the cut.
        step: global step of the cut.
        uri: the cut's address. If the cut is the final one, the run is finished. Empty: the run has more to do since,
            or shard 0 decides that.
        now: as for `restore`.
    """
    same = len(machines) == rules.shards
    number, _, final = machines[0]["cut"]
    record = dict(machines[rules.shard] if same else machines[0])
    record["versions"] = list(versions)
    record["history"] = [[version] for version in versions]
    record["step"] = record["clock"] = max(step, *versions)
    record["final"], record["cut"] = uri if final else "", [number, step, final]
    record["norms"], record["since"] = record["norms"] if same else (), ()
    machine = restore(rules, sizes, record, now)
    for name, unit in machine.units.items():
        # The unit receives every fragment again, so no version that it holds has its contributions.
        unit.last_merged_step, unit.included_in, unit.spoiled = {}, {}, {}
        if not same:
            accounts = [each["units"][name]["account"] for each in machines if name in each["units"]]
            unit.account = carried(convert(accounts, list[Account], str_keys=True), machine.rounds.owned)
        if machine.final:
            unit.account.finish()
    machine.committed = machine.record()
    return machine
