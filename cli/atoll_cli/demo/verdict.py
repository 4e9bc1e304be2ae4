"""From observations to a summary and a verdict. Pure: what happened is judged from the samples alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.text import camel
from atoll_cli.views import LedgerView, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    kind: str
    """`pod`, `unit`, `node`, `link` or `syncer`."""
    victim: str
    """Name of the pod, unit or node."""
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
    """In order of time; at least one before the first fault."""
    faults: Sequence[Fault]
    """Of kind `unit` exactly one, and no other but the syncer's after it."""
    ledgers: Mapping[str, LedgerView]
    """Of the run and its units, when it was complete."""
    untrained: HeldOut
    trained: HeldOut
    margin: float
    """Nats per token by which the trained model must beat the untrained one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the demo showed; the keys of its JSON are these names in camelCase."""

    run: str
    victim: str
    heal_seconds: float | None
    """From the kill to a merged contribution of the new incarnation, as seen from outside (± 2 s)."""
    heal_seconds_operator: float | None
    """The same by the operator's clock, from its status."""
    steps_of_others: Mapping[str, int]
    """Inner steps that each other unit made while the victim healed."""
    incarnation_before: int
    incarnation_after: int
    seeded_step: int | None
    """Global step of the checkpoint from which the victim came back."""
    faults: Sequence[Mapping[str, Any]]
    """Every fault: `kind`, `victim`, `unit`, `at`, `healedAt` (Unix seconds), and `stepsOfOthers`: the inner steps that
    each unit made meanwhile, without the units that a fault hit."""
    pods_kept: bool
    """No pod was replaced, nor restarted, of a unit that no fault hit; after the kill, until the end."""
    loss_first: float | None
    """Training loss when the first unit reported."""
    loss_at_kill: float | None
    loss_after_heal: float | None
    loss_last: float | None
    held_out_untrained: float
    held_out_trained: float
    held_out_tokens: int
    margin_wanted: float
    margin: float
    global_step: int
    target_step: int | None
    tokens: int
    complete: bool
    checkpoint: str
    unbalanced: Sequence[str]
    """Run and units whose ledger does not balance or is missing."""
    syncer_restarts: int
    """Times that it resumed from its journal."""

    @property
    def failures(self) -> list[str]:
        """What did not happen and had to; empty when the demo showed all of it."""
        found = []
        if self.heal_seconds is None:
            found.append(f"{self.victim} was not reseeded: no later incarnation of it was merged")
        elif self.seeded_step is None:
            found.append(f"{self.victim} came back without a checkpoint")
        for fault in self.faults:
            stopped = sorted(unit for unit, steps in fault["stepsOfOthers"].items() if steps <= 0)
            if stopped:
                found.append(f"made no step while {fault['victim']} healed: {', '.join(stopped)}")
            if not fault["stepsOfOthers"]:
                found.append(f"there was no unit that could have gone on while {fault['victim']} healed")
        if not self.pods_kept:
            found.append("pods of other units were replaced, or restarted")
        if any(fault["kind"] == "syncer" for fault in self.faults) and not self.syncer_restarts:
            found.append("the syncer did not resume from its journal")
        if self.unbalanced:
            found.append(f"the ledger does not balance: {', '.join(self.unbalanced)}")
        if not self.complete:
            found.append(f"the run did not complete: step {self.global_step} of {self.target_step}")
        if not self.margin >= self.margin_wanted:  # a loss that is no number fails too
            found.append(
                f"the global model gained {self.margin:.3f} nats per token on held-out text, "
                f"{self.margin_wanted:.3f} were wanted"
            )
        return found


def healed(sample: Sample, unit: str, incarnation: int) -> bool:
    """Whether a later incarnation than `incarnation` of the unit is being merged."""
    found = sample.units.get(unit)
    return found is not None and found.incarnation > incarnation and found.learning


def judge(seen: Observations) -> Summary:
    """Sums up the samples.

    Raises:
        ValueError: no sample was taken before a fault.
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
    return Summary(
        run=last.run.name,
        victim=kill.victim,
        heal_seconds=None if heal is None else heal.time - kill.at,
        heal_seconds_operator=unit.heal_seconds,
        steps_of_others=_steps_of_others(seen, kill),
        incarnation_before=incarnation,
        incarnation_after=unit.incarnation,
        seeded_step=unit.seeded_step,
        faults=[
            {
                "kind": fault.kind,
                "victim": fault.victim,
                "unit": fault.unit,
                "at": fault.at,
                "healedAt": fault.healed_at,
                "stepsOfOthers": _steps_of_others(seen, fault),
            }
            for fault in seen.faults
        ],
        pods_kept=all(_pods_kept(seen, fault) for fault in seen.faults),
        loss_first=losses[0] if losses else None,
        loss_at_kill=at_kill.run.loss,
        loss_after_heal=None if heal is None else heal.run.loss,
        loss_last=losses[-1] if losses else None,
        held_out_untrained=seen.untrained.loss,
        held_out_trained=seen.trained.loss,
        held_out_tokens=seen.trained.tokens,
        margin_wanted=seen.margin,
        margin=seen.untrained.loss - seen.trained.loss,
        global_step=last.run.step,
        target_step=last.run.target,
        tokens=last.run.tokens,
        complete=last.run.complete,
        checkpoint=last.run.final_checkpoint,
        unbalanced=sorted(name for name, each in ledgers.items() if each.balance or not each.trained),
        syncer_restarts=max(sample.run.syncer_restarts for sample in seen.samples),
    )


def _before(samples: Sequence[Sample], time: float) -> Sample:
    """The last sample before `time`."""
    found = [sample for sample in samples if sample.time <= time]
    if not found:
        raise ValueError("no sample was taken before the fault")
    return found[-1]


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
    """True when the others' processes were all there until the heal, and none is new until then; after the kill, ever.

    A finished run has no pods, so that one that goes later is as it must be.
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
    """Pods, and the incarnation that they are."""
    return {(pod.uid, sample.units[unit].incarnation) for pod in sample.pods_of(unit) if unit in sample.units}


def as_json(summary: Summary, timings: Mapping[str, float]) -> dict[str, Any]:
    """The document of `--json`: `passed`, `failures`, the summary in camelCase, `timings` in seconds."""
    fields = {camel(name): getattr(summary, name) for name in summary.__dataclass_fields__}
    rounded = {name: round(value, 2) for name, value in timings.items()}
    return {"passed": not summary.failures, "failures": summary.failures, **fields, "timings": rounded}
