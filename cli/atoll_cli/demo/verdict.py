"""Makes a summary with a verdict from observations. Pure: it judges only from what was observed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.text import camel_keys
from atoll_cli.views import LedgerView, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: str
    """`pod`, `unit`, `node`, `link` or `syncer`."""
    victim: str
    """Name of the pod, unit or node that the fault hit."""
    unit: str = ""
    """The unit that it hit; empty for the syncer."""
    at: float
    """Unix seconds."""
    healed_at: float = float("inf")
    """Unix seconds of the first sample that showed it healed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen of one demo."""

    samples: Sequence[Sample]
    """In order of time. At least one is from before the first fault."""
    faults: Sequence[Fault]
    """Exactly one is of kind `unit`. Only the syncer's may come after it."""
    ledgers: Mapping[str, LedgerView]
    """Ledgers of the run and its units, read when the run was complete."""
    untrained: HeldOut
    trained: HeldOut
    margin: float
    """Nats per token by which the trained model must beat the untrained one."""


def healed(sample: Sample, unit: str, incarnation: int) -> bool:
    """Whether a later incarnation than `incarnation` of the unit is being merged."""
    found = sample.units.get(unit)
    return found is not None and found.incarnation > incarnation and found.learning


def judge(seen: Observations, timings: Mapping[str, float]) -> dict[str, Any]:
    """Return what the demo showed: the document of `--json`. docs/try.md explains its keys.

    Args:
        timings: seconds of each stage.
    """
    kill = next(fault for fault in seen.faults if fault.kind == "unit")
    at_kill, last = _before(seen.samples, kill.at), seen.samples[-1]
    incarnation = at_kill.units[kill.unit].incarnation
    heal = next(
        (each for each in seen.samples if each.time > kill.at and healed(each, kill.unit, incarnation)), None
    )
    unit = last.units.get(kill.unit, at_kill.units[kill.unit])
    losses = [sample.run.loss for sample in seen.samples if sample.run.loss is not None]
    ledgers = {last.run.name: LedgerView(), **dict.fromkeys(last.units, LedgerView()), **seen.ledgers}
    found = {
        "run": last.run.name,
        "victim": kill.victim,
        "healSeconds": None if heal is None else heal.time - kill.at,
        "healSecondsOperator": unit.heal_seconds,
        "stepsOfOthers": _steps_of_others(seen, kill),
        "incarnationBefore": incarnation,
        "incarnationAfter": unit.incarnation,
        "seededStep": unit.seeded_step,
        "faults": [
            camel_keys(fault) | {"stepsOfOthers": _steps_of_others(seen, fault)} for fault in seen.faults
        ],
        "podsKept": all(_pods_kept(seen, fault) for fault in seen.faults),
        "lossFirst": losses[0] if losses else None,
        "lossAtKill": at_kill.run.loss,
        "lossAfterHeal": None if heal is None else heal.run.loss,
        "lossLast": losses[-1] if losses else None,
        "heldOutUntrained": seen.untrained.loss,
        "heldOutTrained": seen.trained.loss,
        "heldOutTokens": seen.trained.tokens,
        "marginWanted": seen.margin,
        "margin": seen.untrained.loss - seen.trained.loss,
        "globalStep": last.run.step,
        "targetStep": last.run.target,
        "tokens": last.run.tokens,
        "complete": last.run.complete,
        "checkpoint": last.run.final_checkpoint,
        "unbalanced": sorted(name for name, each in ledgers.items() if each.balance or not each.trained),
        "syncerRestarts": max(sample.run.syncer_restarts for sample in seen.samples),
        "timings": {name: round(value, 2) for name, value in timings.items()},
    }
    failures = list(_failures(found))
    return {"passed": not failures, "failures": failures, **found}


def _failures(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what should have happened but did not."""
    if found["healSeconds"] is None:
        yield f"{found['victim']} was not reseeded: no later incarnation of it was merged"
    elif found["seededStep"] is None:
        yield f"{found['victim']} came back without a checkpoint"
    for fault in found["faults"]:
        stopped = sorted(unit for unit, steps in fault["stepsOfOthers"].items() if steps <= 0)
        if stopped:
            yield f"made no step while {fault['victim']} healed: {', '.join(stopped)}"
        if not fault["stepsOfOthers"]:
            yield f"there was no unit that could have gone on while {fault['victim']} healed"
    if not found["podsKept"]:
        yield "pods of other units were replaced, or restarted"
    if any(fault["kind"] == "syncer" for fault in found["faults"]) and not found["syncerRestarts"]:
        yield "the syncer did not resume from its journal"
    if found["unbalanced"]:
        yield f"the ledger does not balance: {', '.join(found['unbalanced'])}"
    if not found["complete"]:
        yield f"the run did not complete: step {found['globalStep']} of {found['targetStep']}"
    if not found["margin"] >= found["marginWanted"]:  # a loss that is not a number fails too
        yield (
            f"the global model gained {found['margin']:.3f} nats per token on held-out text, "
            f"{found['marginWanted']:.3f} were wanted"
        )


def _before(samples: Sequence[Sample], time: float) -> Sample:
    """Return the last sample at or before `time`."""
    return [sample for sample in samples if sample.time <= time][-1]


def _others(seen: Observations, fault: Fault) -> list[str]:
    """The units that no fault hit while this one healed."""
    hit = {each.unit for each in seen.faults if each.at < fault.healed_at and each.healed_at > fault.at}
    return sorted(set(_before(seen.samples, fault.at).units) - hit)


def _steps_of_others(seen: Observations, fault: Fault) -> dict[str, int]:
    begin = _before(seen.samples, fault.at)
    end = next((sample for sample in seen.samples if sample.time >= fault.healed_at), seen.samples[-1])
    return {
        name: (end.units[name].step if name in end.units else 0) - begin.units[name].step
        for name in _others(seen, fault)
    }


def _pods_kept(seen: Observations, fault: Fault) -> bool:
    """Return whether the others' processes stayed the same until the heal. After the kill, none may ever be new.

    A finished run has no pods, so processes may end once the run finishes.
    """
    begin = _before(seen.samples, fault.at)
    for name in _others(seen, fault):
        before = _processes(begin, name)
        for sample in seen.samples:
            healing = fault.at < sample.time <= fault.healed_at
            finishing = sample.run.complete or sample.run.phase in ("Finishing", "Complete")
            now = _processes(sample, name)
            if healing and not finishing and now != before:
                return False
            if (healing or (fault.kind == "unit" and sample.time > fault.at)) and now - before:
                return False
    return True


def _processes(sample: Sample, unit: str) -> set[tuple[str, int]]:
    """Return the uid of each pod of the unit, with the unit's incarnation."""
    return {(pod.uid, sample.units[unit].incarnation) for pod in sample.pods_of(unit) if unit in sample.units}
