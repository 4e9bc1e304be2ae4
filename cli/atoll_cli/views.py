"""The fields of runs, units and pods that commands print and judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

LABEL_RUN = "atoll.dev/run"
LABEL_UNIT = "atoll.dev/unit"
LABEL_COMPONENT = "atoll.dev/component"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutView:
    """The global model of the newest checkpoint that the run's evaluator has evaluated."""

    step: int
    loss: float | None
    """Nats per token; None where it is not finite."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A TrainingRun."""

    name: str
    phase: str = "Pending"
    message: str = ""
    units: str = ""
    """Ready and wanted, such as `3/3`."""
    step: int = 0
    target: int | None = None
    tokens: int = 0
    tokens_per_second: float = 0.0
    loss: float | None = None
    quorum: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    checkpoint_step: int | None = None
    final_checkpoint: str = ""
    held_out: HeldOutView | None = None
    syncer_restarts: int = 0
    """How often the syncer resumed from its journal."""
    lost: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What failures cost, by reason, with the names of the status."""
    complete: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitView:
    """A LearnerUnit."""

    name: str
    phase: str = "Pending"
    pool: str = ""
    incarnation: int = 0
    learning: bool = False
    step: int = 0
    loss: float | None = None
    tokens_per_second: float = 0.0
    restarts: int = 0
    heal_seconds: float | None = None
    """As the operator measured the last heal."""
    heal_stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of its stages that are known, by the status's names."""
    seeded_step: int | None = None
    staleness: int = 0
    """Global steps since its last merge."""
    share_percent: float = 0.0
    """Of all merged tokens."""
    link: Mapping[str, Any] = field(default_factory=dict)
    """Of its host 0, by the status's names; empty before it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod of the run; `unit` is empty for the syncer's and the evaluator's."""

    name: str
    uid: str
    component: str = ""
    """Such as `syncer`."""
    unit: str = ""
    node: str = ""
    phase: str = "Pending"
    container_restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """What became of tokens, in token-fragments: a token counts once for each of `fragments`."""

    fragments: int = 0
    trained: int = 0
    merged: int = 0
    in_flight: int = 0
    discarded: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    waits: Sequence[Mapping[str, Any]] = ()
    """Of a unit, tokens in flight that wait for its link: `fragment`, `tokens`, `since`, `what`."""

    @property
    def balance(self) -> int:
        """Token-fragments without a fate, or with more than one when negative."""
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

    def record(self) -> dict[str, Any]:
        """As plain data, for a JSON line."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Sample:
        """What `record` gave."""
        held_out = record["run"].get("held_out")
        return cls(
            time=record["time"],
            run=RunView(**record["run"] | {"held_out": held_out and HeldOutView(**held_out)}),
            units={name: UnitView(**unit) for name, unit in record["units"].items()},
            pods={name: PodView(**pod) for name, pod in record["pods"].items()},
        )


def sample_of(run: str, items: Iterable[Mapping[str, Any]], time: float) -> Sample:
    """Sorts what `kubectl get trainingruns,learnerunits,pods` gave, other runs' objects included."""
    seen = RunView(name=run, phase="Missing")
    units: dict[str, UnitView] = {}
    pods: dict[str, PodView] = {}
    for item in items:
        name = item["metadata"]["name"]
        if item["kind"] == "TrainingRun" and name == run:
            seen = _run(item)
        elif item["kind"] == "LearnerUnit" and item.get("spec", {}).get("run") == run:
            units[name] = _unit(item)
        elif item["kind"] == "Pod" and item["metadata"].get("labels", {}).get(LABEL_RUN) == run:
            pods[name] = _pod(item)
    return Sample(time=time, run=seen, units=units, pods=pods)


def runs_of(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], RunView]:
    """Every run of a listing by namespace and name, in that order."""
    found = [item for item in items if item["kind"] == "TrainingRun"]
    runs = {(item["metadata"].get("namespace", ""), item["metadata"]["name"]): _run(item) for item in found}
    return dict(sorted(runs.items()))


def ledgers_of(run: str, items: Iterable[Mapping[str, Any]]) -> dict[str, LedgerView]:
    """Of the run's units by name, and of the run itself under its own name; only those that have one."""
    found: dict[str, LedgerView] = {}
    for item in items:
        name, ledger = item["metadata"]["name"], item.get("status", {}).get("ledger")
        ours = name == run if item["kind"] == "TrainingRun" else item.get("spec", {}).get("run") == run
        if ours and ledger is not None and item["kind"] in ("TrainingRun", "LearnerUnit"):
            found[name] = LedgerView(
                fragments=ledger.get("fragments", 0),
                trained=ledger.get("trained", 0),
                merged=ledger.get("merged", 0),
                in_flight=ledger.get("inFlight", 0),
                discarded=dict(ledger.get("discarded", {})),
                waits=tuple(ledger.get("waits", ())),
            )
    return found


def condition(item: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition `kind` is True."""
    conditions = item.get("status", {}).get("conditions", [])
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


def _run(item: Mapping[str, Any]) -> RunView:
    status = item.get("status", {})
    evaluation = status.get("evaluation")
    return RunView(
        name=item["metadata"]["name"],
        phase=status.get("phase", "Pending"),
        message=status.get("message", ""),
        units=status.get("unitsSummary", ""),
        step=status.get("globalStep", 0),
        target=status.get("targetSteps") or item["spec"].get("target", {}).get("globalSteps"),
        tokens=status.get("tokens", 0),
        tokens_per_second=status.get("tokensPerSecond", 0.0),
        loss=status.get("loss"),
        quorum=status.get("quorum", ""),
        bytes_in=status.get("bytesIn", 0),
        bytes_out=status.get("bytesOut", 0),
        checkpoint_step=status.get("checkpoint", {}).get("step"),
        final_checkpoint=status.get("finalCheckpoint", ""),
        held_out=evaluation
        and HeldOutView(
            step=evaluation["step"], loss=evaluation.get("loss"), tokens=evaluation.get("tokens", 0)
        ),
        syncer_restarts=status.get("syncerRestarts", 0),
        lost=dict(status.get("lost", {}).get("byReason", {})),
        complete=condition(item, "Complete"),
        failed=condition(item, "Failed"),
    )


def _unit(item: Mapping[str, Any]) -> UnitView:
    status = item.get("status", {})
    return UnitView(
        name=item["metadata"]["name"],
        phase=status.get("phase", "Pending"),
        pool=item["spec"].get("pool", ""),
        incarnation=status.get("incarnation", 0),
        learning=condition(item, "Learning"),
        step=status.get("step", 0),
        loss=status.get("loss"),
        tokens_per_second=status.get("tokensPerSecond", 0.0),
        restarts=status.get("restartCount", 0),
        heal_seconds=status.get("lastHealSeconds"),
        heal_stages=dict(status.get("lastHeal", {}).get("stages", {})),
        seeded_step=status.get("seededStep"),
        staleness=status.get("staleness", 0),
        link=status.get("link") or {},
        share_percent=status.get("sharePercent", 0.0),
    )


def _pod(item: Mapping[str, Any]) -> PodView:
    status = item.get("status", {})
    return PodView(
        name=item["metadata"]["name"],
        uid=item["metadata"]["uid"],
        component=item["metadata"]["labels"].get(LABEL_COMPONENT, ""),
        unit=item["metadata"]["labels"].get(LABEL_UNIT, ""),
        node=item["spec"].get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        container_restarts=sum(entry.get("restartCount", 0) for entry in status.get("containerStatuses", [])),
    )
