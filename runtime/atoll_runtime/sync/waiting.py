"""What a syncer is waiting for, in words, for its status."""

from __future__ import annotations

from atoll_runtime.sync import quorum
from atoll_runtime.sync.rounds import Round, Syncer


def why(machine: Syncer, now: float) -> str:
    """One sentence; several rounds in flight are told one after the other."""
    if machine.final:
        return f"finished at global step {machine.step}; the final cut is {machine.final}"
    if machine.rounds:
        waits = [f"round of {held.id}: {stage(machine, held, now)}" for held in machine.rounds.values()]
        return "; ".join(waits)
    if machine.finishing:
        return f"the target is reached at global step {machine.step}; writing the final cut"
    live, needed = len(machine.live(now)), machine.rules.quorum
    if live < needed:
        return f"{live} live units, K={needed} are needed{absent(machine, now)}"
    return f"global step {machine.step}, {live} live units, the next step when the slowest has made one"


def stage(machine: Syncer, held: Round, now: float) -> str:
    """Where a round is."""
    if held.stage == "Merging":
        return "merging"
    if held.stage == "Writing":
        return "writing to the journal"
    decision = machine.decide(held, now)
    return "ready to merge" if isinstance(decision, quorum.Ready) else decision.why


def absent(machine: Syncer, now: float) -> str:
    """The units that cannot contribute, and what each lacks."""
    reasons = []
    for name, unit in sorted(machine.units.items()):
        if unit.live(now, machine.rules.silence):
            continue
        if not unit.complete:
            reasons.append(f"{name}: {len(unit.hosts)} of {unit.hosts_wanted} hosts connected")
        elif unit.pace.value is None or unit.reported is None:
            reasons.append(f"{name}: has not made two steps yet")
        else:
            reasons.append(f"{name}: silent for {now - unit.reported:.0f} s")
    return f" ({'; '.join(reasons)})" if reasons else ""
