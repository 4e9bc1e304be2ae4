"""What a trial has to show, as sentences for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll_cli.demo.evaluation import HeldOut
from atoll_cli.text import camel, seconds
from atoll_cli.trial.operator import Unit
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan.conditions import is_true


@dataclass
class Kill:
    """One learner's end and return."""

    unit: str
    incarnation: int
    """The one that was killed."""
    steps: dict[str, int]
    """Inner steps of each unit at the kill."""
    heal_seconds: float | None = None
    """From the kill until it was merged again."""
    reason: str = ""
    seeded_step: int | None = None
    steps_of_others: dict[str, int] = field(default_factory=dict)
    """Inner steps that the others made meanwhile."""

    @classmethod
    def of(cls, unit: str, units: Mapping[str, Unit]) -> Kill:
        steps = {name: each.status.step for name, each in units.items()}
        return cls(unit, units[unit].status.incarnation, steps)

    def healed(self, status: LearnerUnitStatus) -> bool:
        return status.incarnation > self.incarnation and is_true(status.conditions, "Learning")

    def note(self, units: Mapping[str, Unit]) -> None:
        """Keep how the unit came back, and what the others did."""
        status = units[self.unit].status
        if (heal := status.last_heal) is not None:
            self.heal_seconds, self.reason = heal.seconds, heal.reason
        self.seeded_step = status.seeded_step
        others = sorted(units.keys() - {self.unit})
        self.steps_of_others = {name: units[name].status.step - self.steps[name] for name in others}

    def __str__(self) -> str:
        took = "-" if self.heal_seconds is None else seconds(self.heal_seconds)
        back = (
            f"{self.unit} was merged again {took} after the kill, seeded from the checkpoint of global step"
        )
        made = (f"{name} made {steps} steps meanwhile" for name, steps in self.steps_of_others.items())
        return "\n".join([f"{back} {self.seeded_step}", *made])


@dataclass
class Trial:
    """What was seen."""

    run: str
    phase: str = "Pending"
    global_step: int = 0
    killed: Kill | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    """Of each unit."""
    held_out: dict[str, HeldOut] = field(default_factory=dict)
    """Of the model `before` and `after` training."""
    seconds: float = 0.0


def judge(trial: Trial) -> list[str]:
    """What did not happen."""
    failures = []
    if trial.phase != "Complete":
        failures.append(f"the run is {trial.phase}, not Complete")
    if (kill := trial.killed) is None or kill.heal_seconds is None:
        failures.append("the learner that was killed did not come back")
    else:
        if kill.seeded_step is None:
            failures.append(f"{kill.unit} came back without a checkpoint")
        for name, steps in kill.steps_of_others.items():
            if steps <= 0:
                failures.append(f"{name} made no step while {kill.unit} was away")
            if trial.restarts[name]:
                failures.append(f"{name} restarted too")
    if not trial.held_out or trial.held_out["after"].loss >= trial.held_out["before"].loss:
        failures.append("the held-out loss did not fall")
    return failures


def render(trial: Trial, failures: list[str]) -> str:
    """A few lines, and the verdict."""
    losses = [f"{found.loss:.3f} at global step {found.step}" for found in trial.held_out.values()]
    lines = ["", f"held-out loss, in nats per token: {', '.join(losses)}"]
    lines += [f"did not happen: {each}" for each in failures] or ["all of it happened"]
    return "\n".join([*lines, f"{seconds(trial.seconds)} in all"])


def as_json(trial: Trial, timings: Mapping[str, float], failures: list[str]) -> dict[str, Any]:
    """The summary of `--json`."""
    stages = {name: round(value, 1) for name, value in timings.items()}
    seen: dict[str, Any] = _camel(asdict(trial))
    return {"passed": not failures, "failures": failures, **seen, "stages": stages}


def _camel(value: Any) -> Any:
    return {camel(key): _camel(item) for key, item in value.items()} if isinstance(value, dict) else value
