"""The fields of runs, units and pods that commands print and judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field, TypeAdapter

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, LABEL_UNIT


def _at(*path: str) -> Any:
    """The place of the field in a Kubernetes object."""
    return Field(validation_alias=AliasPath(*path))


def _true(kind: str) -> BeforeValidator:
    """Reduce a list of conditions to whether the one of this type is True."""
    return BeforeValidator(
        lambda found: any(each["type"] == kind and each["status"] == "True" for each in found)
    )


def _message(kind: str, reason: str) -> BeforeValidator:
    """Reduce a list of conditions to the message of the one with this type and reason; empty if there is none."""
    return BeforeValidator(
        lambda found: next(
            (each["message"] for each in found if (each["type"], each.get("reason")) == (kind, reason)), ""
        )
    )


_TARGET = Field(
    validation_alias=AliasChoices(
        AliasPath("status", "targetSteps"), AliasPath("spec", "target", "globalSteps")
    )
)
_RESTARTS = BeforeValidator(lambda found: sum(each.get("restartCount", 0) for each in found))
_OR_EMPTY = BeforeValidator(lambda found: found or {})
_CONDITIONS = _at("status", "conditions")
_NAME = Annotated[str, _at("metadata", "name")]
_PHASE = Annotated[str, _at("status", "phase")]
_LOSS = Annotated[float | None, _at("status", "loss")]
_RATE = Annotated[float, _at("status", "tokensPerSecond")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutView:
    """Held-out loss of the newest checkpoint that the run's evaluator has evaluated."""

    step: int
    loss: float | None = None
    """Nats per token; None if it is not finite."""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A TrainingRun."""

    name: _NAME
    phase: _PHASE = "Pending"
    message: Annotated[str, _at("status", "message")] = ""
    units: Annotated[str, _at("status", "unitsSummary")] = ""
    """Ready and wanted, such as `3/3`."""
    step: Annotated[int, _at("status", "globalStep")] = 0
    target: Annotated[int | None, _TARGET] = None
    tokens: Annotated[int, _at("status", "tokens")] = 0
    tokens_per_second: _RATE = 0.0
    loss: _LOSS = None
    quorum: Annotated[str, _at("status", "quorum")] = ""
    bytes_in: Annotated[int, _at("status", "bytesIn")] = 0
    bytes_out: Annotated[int, _at("status", "bytesOut")] = 0
    checkpoint_step: Annotated[int | None, _at("status", "checkpoint", "step")] = None
    final_checkpoint: Annotated[str, _at("status", "finalCheckpoint")] = ""
    held_out: Annotated[HeldOutView | None, _at("status", "evaluation")] = None
    syncer_restarts: Annotated[int, _at("status", "syncerRestarts")] = 0
    """How often the syncer resumed from its journal."""
    lost: Annotated[Mapping[str, Any], _at("status", "lost", "byReason")] = field(default_factory=dict)
    """What failures cost, by reason, with the names of the status."""
    complete: Annotated[bool, _CONDITIONS, _true("Complete")] = False
    failed: Annotated[bool, _CONDITIONS, _true("Failed")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitView:
    """A LearnerUnit."""

    name: _NAME
    phase: _PHASE = "Pending"
    pool: Annotated[str, _at("spec", "pool")] = ""
    incarnation: Annotated[int, _at("status", "incarnation")] = 0
    learning: Annotated[bool, _CONDITIONS, _true("Learning")] = False
    slow: Annotated[str, _CONDITIONS, _message("Learning", "SlowSteps")] = ""
    """Why the unit's steps do not set the run's interval; empty if they may."""
    step: Annotated[int, _at("status", "step")] = 0
    loss: _LOSS = None
    tokens_per_second: _RATE = 0.0
    restarts: Annotated[int, _at("status", "restartCount")] = 0
    heal_seconds: Annotated[float | None, _at("status", "lastHealSeconds")] = None
    """Duration of the last heal, as the operator measured it."""
    heal_stages: Annotated[Mapping[str, float], _at("status", "lastHeal", "stages")] = field(
        default_factory=dict
    )
    """Seconds of each known stage of the last heal, by its name in the status."""
    seeded_step: Annotated[int | None, _at("status", "seededStep")] = None
    staleness: Annotated[int, _at("status", "staleness")] = 0
    """Global steps since its last merge."""
    share_percent: Annotated[float, _at("status", "sharePercent")] = 0.0
    """Of all merged tokens."""
    link: Annotated[Mapping[str, Any], _at("status", "link"), _OR_EMPTY] = field(default_factory=dict)
    """The link of host 0, by the names of the status; empty until it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod of the run; `unit` is empty for the syncer's and the evaluator's."""

    name: _NAME
    uid: Annotated[str, _at("metadata", "uid")]
    component: Annotated[str, _at("metadata", "labels", LABEL_COMPONENT)] = ""
    """Such as `syncer`."""
    unit: Annotated[str, _at("metadata", "labels", LABEL_UNIT)] = ""
    node: Annotated[str, _at("spec", "nodeName")] = ""
    phase: _PHASE = "Pending"
    container_restarts: Annotated[int, _at("status", "containerStatuses"), _RESTARTS] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """What became of tokens, in token-fragments: a token counts once for each of `fragments`."""

    fragments: int = 0
    trained: int = 0
    merged: int = 0
    discarded: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    in_flight: Annotated[int, _at("inFlight")] = 0
    waits: Sequence[Mapping[str, Any]] = ()
    """For a unit, tokens in flight that wait for its link: `fragment`, `tokens`, `since`, `what`."""

    @property
    def balance(self) -> int:
        """Token-fragments that are not accounted for. If negative, some are counted more than once."""
        return self.trained - self.merged - self.in_flight - sum(self.discarded.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was seen at one moment."""

    time: float
    """Unix seconds."""
    run: RunView
    units: Mapping[str, UnitView]
    pods: Mapping[str, PodView]

    def pods_of(self, unit: str) -> list[PodView]:
        """The unit's pods, by name."""
        return sorted((pod for pod in self.pods.values() if pod.unit == unit), key=lambda pod: pod.name)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Sample:
        """Return the sample of which `asdict` has made this record."""
        held_out = record["run"].get("held_out")
        return cls(
            time=record["time"],
            run=RunView(**record["run"] | {"held_out": held_out and HeldOutView(**held_out)}),
            units={name: UnitView(**unit) for name, unit in record["units"].items()},
            pods={name: PodView(**pod) for name, pod in record["pods"].items()},
        )


_RUN, _UNIT = TypeAdapter(RunView), TypeAdapter(UnitView)
_POD, _LEDGER = TypeAdapter(PodView), TypeAdapter(LedgerView)


def sample_of(run: str, items: Iterable[Mapping[str, Any]], time: float) -> Sample:
    """Return a run's sample from the output of `kubectl get trainingruns,learnerunits,pods`. Skips other runs."""
    seen = RunView(name=run, phase="Missing")
    units: dict[str, UnitView] = {}
    pods: dict[str, PodView] = {}
    for item in items:
        name = item["metadata"]["name"]
        if item["kind"] == "TrainingRun" and name == run:
            seen = _RUN.validate_python(item)
        elif item["kind"] == "LearnerUnit" and item.get("spec", {}).get("run") == run:
            units[name] = _UNIT.validate_python(item)
        elif item["kind"] == "Pod" and item["metadata"].get("labels", {}).get(LABEL_RUN) == run:
            pods[name] = _POD.validate_python(item)
    return Sample(time=time, run=seen, units=units, pods=pods)


def runs_of(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], RunView]:
    """Every run of a listing of runs by namespace and name, in that order."""
    runs = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): _RUN.validate_python(item)
        for item in items
    }
    return dict(sorted(runs.items()))


def ledgers_of(run: str, items: Iterable[Mapping[str, Any]]) -> dict[str, LedgerView]:
    """Return the ledgers of the run's units and of the run itself, by name. Objects without a ledger are left out."""
    found: dict[str, LedgerView] = {}
    for item in items:
        name, ledger = item["metadata"]["name"], item.get("status", {}).get("ledger")
        ours = name == run if item["kind"] == "TrainingRun" else item["spec"].get("run") == run
        if ours and ledger is not None:
            found[name] = _LEDGER.validate_python(ledger)
    return found
