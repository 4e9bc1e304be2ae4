"""Makes a summary with a verdict from observations, and prints it for people. Pure: it judges only from what was
observed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.text import camel_keys, loss, seconds, table
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


def healed(sample: Sample, unit: str, incarnation: int) -> bool:
    """Whether a later incarnation than `incarnation` of the unit is being merged."""
    found = sample.units.get(unit)
    return found is not None and found.incarnation > incarnation and found.learning


def judge(
    samples: Sequence[Sample],
    faults: Sequence[Fault],
    ledgers: Mapping[str, LedgerView],
    evaluations: tuple[HeldOut, HeldOut],
    margin: float,
    timings: Mapping[str, float],
) -> dict[str, Any]:
    """Return what the demo showed: the document of `--json`. docs/try.md explains its keys.

    Args:
        samples: all of a run that is complete, in order of time. At least one is from before the first fault.
        faults: healed ones. Exactly one is of kind `unit`, and only the syncer's may come after it.
        ledgers: those of the run and its units at the end.
        evaluations: of the untrained and the trained model.
        margin: nats per token by which the trained model must beat the untrained one.
        timings: seconds of each stage.
    """
    kill = next(fault for fault in faults if fault.kind == "unit")
    at_kill, at_heal, last = _before(samples, kill.at), _after(samples, kill.healed_at), samples[-1]
    unit = last.units[kill.unit]
    losses = [sample.run.loss for sample in samples if sample.run.loss is not None]
    ledgers = {last.run.name: LedgerView(), **dict.fromkeys(last.units, LedgerView()), **ledgers}
    untrained, trained = evaluations
    found = {
        "run": last.run.name,
        "victim": kill.victim,
        "healSeconds": at_heal.time - kill.at,
        "healSecondsOperator": unit.heal_seconds,
        "stepsOfOthers": _steps_of_others(samples, faults, kill),
        "incarnationBefore": at_kill.units[kill.unit].incarnation,
        "incarnationAfter": unit.incarnation,
        "seededStep": unit.seeded_step,
        "faults": [
            camel_keys(fault) | {"stepsOfOthers": _steps_of_others(samples, faults, fault)}
            for fault in faults
        ],
        "podsKept": all(_pods_kept(samples, faults, fault) for fault in faults),
        "lossFirst": losses[0] if losses else None,
        "lossAtKill": at_kill.run.loss,
        "lossAfterHeal": at_heal.run.loss,
        "lossLast": losses[-1] if losses else None,
        "heldOutUntrained": untrained.loss,
        "heldOutTrained": trained.loss,
        "heldOutTokens": trained.tokens,
        "marginWanted": margin,
        "margin": untrained.loss - trained.loss,
        "globalStep": last.run.step,
        "targetStep": last.run.target,
        "tokens": last.run.tokens,
        "complete": last.run.complete,
        "checkpoint": last.run.final_checkpoint,
        "unbalanced": sorted(name for name, each in ledgers.items() if each.balance or not each.trained),
        "syncerRestarts": max(sample.run.syncer_restarts for sample in samples),
        "timings": {name: round(value, 2) for name, value in timings.items()},
    }
    failures = list(_failures(found))
    return {"passed": not failures, "failures": failures, **found}


def render(found: Mapping[str, Any]) -> str:
    """Return a table and the verdict. `found` is the result of `judge`."""
    others = ", ".join(f"{name} {steps}" for name, steps in found["stepsOfOthers"].items())
    by_operator = seconds(found["healSecondsOperator"])
    faults = [
        f"{fault['kind']} {fault['victim']} after {seconds(fault['healedAt'] - fault['at'])}"
        for fault in found["faults"]
    ]
    rows = [
        (
            "killed",
            f"{found['victim']}, incarnation {found['incarnationBefore']} → {found['incarnationAfter']}",
        ),
        ("time to heal", f"{seconds(found['healSeconds'])} (by the operator's clock {by_operator})"),
        ("all that was healed", ", ".join(faults)),
        ("seeded from", "-" if found["seededStep"] is None else f"global step {found['seededStep']}"),
        ("steps of the others", others or "-"),
        ("pods of the others", "the same" if found["podsKept"] else "replaced"),
        (
            "training loss",
            f"first {loss(found['lossFirst'])}, at the kill {loss(found['lossAtKill'])}, "
            f"after the heal {loss(found['lossAfterHeal'])}, last {loss(found['lossLast'])}",
        ),
        (
            "held-out loss",
            f"untrained {loss(found['heldOutUntrained'])}, trained {loss(found['heldOutTrained'])}: "
            f"better by {found['margin']:.3f} nats per token on {found['heldOutTokens']:,} tokens "
            f"(wanted: {found['marginWanted']:g})",
        ),
        ("run", f"step {found['globalStep']} of {found['targetStep']}, {found['tokens']:,} tokens merged"),
        ("checkpoint", found["checkpoint"] or "-"),
        ("stages", ", ".join(f"{name} {seconds(value)}" for name, value in found["timings"].items())),
    ]
    verdict = [f"did not happen: {failure}" for failure in found["failures"]] or ["all of it happened"]
    return "\n".join(["", table(("SUMMARY", ""), rows), "", *verdict])


def _failures(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what should have happened but did not."""
    if found["seededStep"] is None:
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
    if not found["margin"] >= found["marginWanted"]:  # a loss that is not a number fails too
        yield (
            f"the global model gained {found['margin']:.3f} nats per token on held-out text, "
            f"{found['marginWanted']:.3f} were wanted"
        )


def _before(samples: Sequence[Sample], time: float) -> Sample:
    """Return the last sample at or before `time`."""
    return [sample for sample in samples if sample.time <= time][-1]


def _after(samples: Sequence[Sample], time: float) -> Sample:
    """Return the first sample at or after `time`."""
    return next(sample for sample in samples if sample.time >= time)


def _others(samples: Sequence[Sample], faults: Sequence[Fault], fault: Fault) -> list[str]:
    """The units that no fault hit while this one healed."""
    hit = {each.unit for each in faults if each.at < fault.healed_at and each.healed_at > fault.at}
    return sorted(set(_before(samples, fault.at).units) - hit)


def _steps_of_others(samples: Sequence[Sample], faults: Sequence[Fault], fault: Fault) -> dict[str, int]:
    begin, end = _before(samples, fault.at), _after(samples, fault.healed_at)
    return {
        name: (end.units[name].step if name in end.units else 0) - begin.units[name].step
        for name in _others(samples, faults, fault)
    }


def _pods_kept(samples: Sequence[Sample], faults: Sequence[Fault], fault: Fault) -> bool:
    """Return whether the others' processes stayed the same until the heal. After the kill, none may ever be new.

    A finished run has no pods, so processes may end once the run finishes.
    """
    for name in _others(samples, faults, fault):
        before = _processes(_before(samples, fault.at), name)
        for sample in samples:
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
