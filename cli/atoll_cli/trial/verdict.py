"""What a trial has to show, as sentences for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.text import seconds
from atoll_cli.trial.operator import Unit
from atoll_operator.api.learnerunit import Heal, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.conditions import is_true


@dataclass
class Kill:
    """One learner's end and return."""

    unit: str
    incarnation: int
    steps: dict[str, int]
    """Inner steps of each unit at the kill."""
    heal: Heal | None = None
    seeded_step: int | None = None
    steps_of_others: dict[str, int] = field(default_factory=dict)
    """Inner steps that the others made until it was back."""

    @classmethod
    def of(cls, unit: str, units: Mapping[str, Unit]) -> Kill:
        steps = {name: each.status.step for name, each in units.items()}
        return cls(unit, units[unit].status.incarnation, steps)

    def healed(self, status: LearnerUnitStatus) -> bool:
        return status.incarnation > self.incarnation and is_true(status.conditions, "Learning")

    def note(self, units: Mapping[str, Unit]) -> None:
        """Keep how the unit came back, and what the others did."""
        status = units[self.unit].status
        self.heal, self.seeded_step = status.last_heal, status.seeded_step
        self.steps_of_others = {
            name: unit.status.step - self.steps[name] for name, unit in units.items() if name != self.unit
        }

    def words(self) -> list[str]:
        took = seconds(self.heal.seconds) if self.heal is not None else "-"
        back = (
            f"{self.unit} was merged again {took} after the kill, seeded from the checkpoint of global step"
        )
        made = [
            f"{name} made {steps} steps meanwhile" for name, steps in sorted(self.steps_of_others.items())
        ]
        return [f"{back} {self.seeded_step}", *made]


@dataclass
class Trial:
    """What was seen."""

    name: str
    target: int
    """Global steps."""
    kill: Kill | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    """Of each unit."""
    before: HeldOut | None = None
    after: HeldOut | None = None
    status: TrainingRunStatus = field(default_factory=TrainingRunStatus)
    seconds: float = 0.0


def judge(trial: Trial) -> list[str]:
    """What did not happen."""
    failures = []
    if trial.status.phase != "Complete":
        failures.append(f"the run is {trial.status.phase}, not Complete")
    kill = trial.kill
    if kill is None or kill.heal is None:
        failures.append("the learner that was killed did not come back")
    else:
        if kill.seeded_step is None:
            failures.append(f"{kill.unit} came back without a checkpoint")
        for name, steps in kill.steps_of_others.items():
            if steps <= 0:
                failures.append(f"{name} made no step while {kill.unit} was away")
            if trial.restarts[name]:
                failures.append(f"{name} restarted too")
    if trial.before is None or trial.after is None or trial.after.loss >= trial.before.loss:
        failures.append("the held-out loss did not fall")
    return failures


def render(trial: Trial, failures: list[str]) -> str:
    """A few lines, and the verdict."""
    lines = [""]
    if trial.before is not None and trial.after is not None:
        lines.append(
            f"held-out loss, in nats per token: {trial.before.loss:.3f} at global step {trial.before.step}, "
            f"{trial.after.loss:.3f} at global step {trial.after.step}"
        )
    lines += [f"did not happen: {each}" for each in failures] or ["all of it happened"]
    return "\n".join([*lines, f"{seconds(trial.seconds)} in all"])


def as_json(trial: Trial, timings: Mapping[str, float], failures: list[str]) -> dict[str, Any]:
    """The summary of `--json`."""
    kill = trial.kill
    return {
        "passed": not failures,
        "failures": failures,
        "run": trial.name,
        "phase": trial.status.phase,
        "globalStep": trial.status.global_step,
        "killed": None
        if kill is None
        else {
            "unit": kill.unit,
            "healSeconds": kill.heal and kill.heal.seconds,
            "reason": kill.heal and kill.heal.reason,
            "seededStep": kill.seeded_step,
            "stepsOfOthers": kill.steps_of_others,
        },
        "restarts": trial.restarts,
        "heldOut": {
            "before": trial.before and asdict(trial.before),
            "after": trial.after and asdict(trial.after),
        },
        "seconds": round(trial.seconds, 1),
        "stages": {name: round(value, 1) for name, value in timings.items()},
    }
