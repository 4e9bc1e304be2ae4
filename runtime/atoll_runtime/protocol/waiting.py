"""What a syncer is waiting for, in words, for its status."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_runtime.contract import WaitReport
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.units import Unit


def why(machine: Syncer, now: float) -> str:
    """One sentence, or one for each of several rounds in flight."""
    if machine.final:
        return f"finished at global step {machine.step}; the final cut is {machine.final}"
    due = [held for held in machine.rounds.in_flight.values() if held.stage != "Early"]
    if due:
        return "; ".join(f"round of {held.id}: {stage(machine, held)}" for held in due)
    if machine.finishing:
        if machine.cuts.newest.final:
            return f"the target is reached at global step {machine.step}; writing the final cut"
        return f"the target is reached; waiting for shard {', '.join(map(str, machine.behind))}"
    live, needed = len(machine.rounds.live), machine.rules.quorum
    if live < needed:
        return f"{live} live units, K={needed} are needed{absent(machine, now)}"
    if not machine.coordinates:
        return f"global step {machine.step}, {live} connected units, the next step when shard 0 says so"
    return f"global step {machine.step}, {live} live units, the next step when the slowest has made one"


def stage(machine: Syncer, held: Round) -> str:
    """The stage of a round, and what it waits for."""
    count = len(held.contributions.members)
    if held.stage == "Receiving":
        names = ", ".join(held.contributions.lacking)
        if not held.quorate:
            return f"{held.short}, the next attempt follows"
        return f"{count} members, receiving the contributions of {names}"
    if held.stage == "Merging":
        return "merging"
    if held.stage == "Writing":
        return "writing to the journal"
    awaited = ", ".join(sorted(machine.rounds.roster.awaited[held.id]))
    if held.quorate:
        return f"{count} in (K={held.quorum}), " + (
            f"grace window for {awaited}" if awaited else "ready to merge"
        )
    return f"{held.short}, " + (f"waiting for {awaited}" if awaited else "no live unit left to wait for")


def absent(machine: Syncer, now: float) -> str:
    """The units that cannot contribute, and what each lacks."""
    reasons = []
    for name, unit in sorted(machine.units.items()):
        if name in machine.rounds.roster.live:
            continue
        if not unit.complete:
            reasons.append(f"{name}: {len(unit.hosts)} of {unit.hosts_wanted} hosts connected")
        elif unit.hushed:
            reasons.append(f"{name}: silent, as shard 0 tells")
        elif unit.pace.value is None or unit.reported is None:
            reasons.append(f"{name}: has not made two steps yet")
        else:
            reasons.append(f"{name}: silent for {now - unit.reported:.0f} s")
    return f" ({'; '.join(reasons)})" if reasons else ""


def waits(machine: Syncer, unit: Unit) -> Iterator[WaitReport]:
    """What a unit's tokens wait for, by fragment. Tokens that wait only for their next round are left out."""
    account = unit.account
    for p in account.owned:
        tokens = account.position - account.settled.get(p, 0)
        contributions = [each.contributions for each in machine.rounds.holding if each.id.fragment == p]
        sent = next((each.members[unit.name] for each in contributions if unit.name in each.lacking), None)
        missed = machine.rounds.versions[p].missed(unit)
        if sent is not None:
            since, what = sent.round.step, "its link carries the contribution to this round"
        elif tokens and not unit.complete:
            since = unit.included_in.get(p, unit.entered)
            what = "its work since this step waits for a session"
        elif tokens and missed:
            turn = f"its turn, one round in {unit.turn:.3g}" if unit.turn > 1.0 else "its next answer"
            since, what = missed[0], f"its work waits for {turn}: it is a member of no round since this one"
        else:
            continue
        yield WaitReport(fragment=p, tokens=tokens, since=since, what=what)
