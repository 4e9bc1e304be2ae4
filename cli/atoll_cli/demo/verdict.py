"""From observations to a summary and a verdict. Pure: what happened is judged from the samples alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.text import camel
from atoll_cli.views import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen of one demo."""

    samples: Sequence[Sample]
    """In order of time; at least one before the kill."""
    victim: str
    """The unit that was killed."""
    killed_at: float
    """Unix seconds."""
    untrained: HeldOut
    trained: HeldOut
    margin: float
    """Nats per token by which the trained model must beat the untrained one."""
    pod_deleted: str = ""
    """Name of the pod that was deleted besides, before the kill."""
    syncer_killed: bool = False


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
    pods_kept: bool
    """No pod of another unit was replaced between the kill and the end."""
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
    pod_deleted: str
    syncer_killed: bool
    syncer_restarts: int
    """Times that it resumed from its journal."""

    @property
    def failures(self) -> list[str]:
        """What did not happen and had to; empty when the demo showed all of it."""
        found = []
        if self.heal_seconds is None:
            found.append(f"{self.victim} was not reseeded: no later incarnation of it was merged")
        stopped = sorted(unit for unit, steps in self.steps_of_others.items() if steps <= 0)
        if stopped:
            found.append(f"made no step while {self.victim} healed: {', '.join(stopped)}")
        if not self.steps_of_others:
            found.append("there was no other unit that could have gone on")
        if not self.pods_kept:
            found.append("pods of other units were replaced")
        if self.syncer_killed and not self.syncer_restarts:
            found.append("the syncer did not resume from its journal")
        if not self.complete:
            found.append(f"the run did not complete: step {self.global_step} of {self.target_step}")
        if not self.margin >= self.margin_wanted:  # a loss that is no number fails too
            found.append(
                f"the global model gained {self.margin:.3f} nats per token on held-out text, "
                f"{self.margin_wanted:.3f} were wanted"
            )
        return found


def healed(sample: Sample, victim: str, incarnation: int) -> bool:
    """Whether a later incarnation than `incarnation` of the unit is being merged."""
    unit = sample.units.get(victim)
    return unit is not None and unit.incarnation > incarnation and unit.learning


def judge(seen: Observations) -> Summary:
    """Sums up the samples.

    Raises:
        ValueError: no sample was taken before the kill.
    """
    before = [sample for sample in seen.samples if sample.time <= seen.killed_at]
    after = [sample for sample in seen.samples if sample.time > seen.killed_at]
    if not before:
        raise ValueError("no sample was taken before the kill")
    last, at_kill = seen.samples[-1], before[-1]
    incarnation = at_kill.units[seen.victim].incarnation
    heal = next((sample for sample in after if healed(sample, seen.victim, incarnation)), None)
    end = heal or last
    others = sorted(set(at_kill.units) - {seen.victim})
    unit = last.units.get(seen.victim, at_kill.units[seen.victim])
    return Summary(
        run=last.run.name,
        victim=seen.victim,
        heal_seconds=None if heal is None else heal.time - seen.killed_at,
        heal_seconds_operator=unit.heal_seconds,
        steps_of_others={name: _step(end, name) - at_kill.units[name].step for name in others},
        incarnation_before=incarnation,
        incarnation_after=unit.incarnation,
        seeded_step=unit.seeded_step,
        pods_kept=_pods_kept(at_kill, after, end, others),
        loss_first=next((sample.run.loss for sample in seen.samples if sample.run.loss is not None), None),
        loss_at_kill=at_kill.run.loss,
        loss_after_heal=None if heal is None else heal.run.loss,
        loss_last=next(
            (sample.run.loss for sample in reversed(seen.samples) if sample.run.loss is not None), None
        ),
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
        pod_deleted=seen.pod_deleted,
        syncer_killed=seen.syncer_killed,
        syncer_restarts=max(sample.run.syncer_restarts for sample in seen.samples),
    )


def _step(sample: Sample, unit: str) -> int:
    return sample.units[unit].step if unit in sample.units else 0


def _pods_kept(at_kill: Sample, after: Sequence[Sample], end: Sample, others: Sequence[str]) -> bool:
    """True when no pod of another unit is new after the kill, and all were there until the heal had ended.

    A finished run has no pods, so that one that goes later is as it must be.
    """
    for name in others:
        uids = {pod.uid for pod in at_kill.pods_of(name)}
        for sample in after:
            now = {pod.uid for pod in sample.pods_of(name)}
            finishing = sample.run.complete or sample.run.phase in ("Finishing", "Complete")
            if now - uids or (sample.time <= end.time and not finishing and now != uids):
                return False
    return True


def as_json(summary: Summary, timings: Mapping[str, float]) -> dict[str, Any]:
    """The document of `--json`: `passed`, `failures`, the summary in camelCase, `timings` in seconds."""
    fields = {camel(name): getattr(summary, name) for name in summary.__dataclass_fields__}
    rounded = {name: round(value, 2) for name, value in timings.items()}
    return {"passed": not summary.failures, "failures": summary.failures, **fields, "timings": rounded}
