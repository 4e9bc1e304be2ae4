"""Conditions, Events, and times in the form of the API. All conditions are present from the first pass, each with a
reason. `lastTransitionTime` changes only with the status."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel

from atoll_operator.api.common import EVALUATED, Condition
from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunStatus

MESSAGE_LIMIT = 4096
S = TypeVar("S", LearnerUnitStatus, TrainingRunStatus)
State = tuple[Literal["True", "False", "Unknown"], str, str]
"""Status, reason, message."""
ABSENT = Condition(type="", status="Unknown", reason="Absent", last_transition_time="")
FIGURES = frozenset(
    {
        "step", "tokens", "loss", "tokensPerSecond", "staleness", "contributions", "globalStep", "progressPercent",
        "bytesIn", "bytesOut", "quorum", "message", "ledger", "sharePercent", "stepSeconds", "link", "refusals",
    }
)  # fmt: skip
"""Progress figures: a write for them alone can wait."""
LINK_ADEQUATE = "LinkAdequate"
"""A condition of units. Its message has figures, whatever its status."""
VERSION_SKEW = "VersionSkew"
"""A condition that an object has only while it has parts that this version does not know."""
COUNTED = frozenset({"Placing", "PodsStarting", "Restarting"})
"""Reasons of conditions whose messages count pods."""


class Notice(NamedTuple):
    """One Event that a plan asks for. Notices of the same reason and `occasion` (such as an incarnation) are sent
    once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    occasion: str = ""


def state(value: bool | None, reason: str, message: str = "") -> State:
    """A condition's state; `None` is Unknown."""
    return ("Unknown" if value is None else "True" if value else "False"), reason, message


def transition(
    old: Sequence[Condition], states: Mapping[str, State], generation: int, now: float
) -> tuple[Condition, ...]:
    """The conditions in the order of `states`; `lastTransitionTime` is kept if the status is unchanged."""
    since = {(condition.type, condition.status): condition.last_transition_time for condition in old}
    return tuple(
        Condition(
            type=name,
            status=status,
            reason=reason,
            message=clip(message),
            last_transition_time=since.get((name, status)) or format_time(now),
            observed_generation=generation,
        )
        for name, (status, reason, message) in states.items()
    )


def states_of(conditions: Iterable[Condition]) -> dict[str, State]:
    return {item.type: (item.status, item.reason, item.message) for item in conditions}


def find(conditions: Sequence[Condition], name: str) -> Condition:
    """The condition; `ABSENT` before the first pass."""
    for condition in conditions:
        if condition.type == name:
            return condition
    return ABSENT


def is_true(conditions: Sequence[Condition], name: str) -> bool:
    return find(conditions, name).status == "True"


def clip(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """A message, cut to the length that the schema allows, or a shorter one."""
    return message if len(message) <= limit else message[: limit - 1] + "…"


def refused(status: S, old: S, condition: str, message: str, now: float, reason: str = "ObjectRefused") -> S:
    """The status after the API server refused an object, which this condition shows; `old`: before this pass."""
    shown = states_of(status.conditions)
    shown[condition] = state(condition == "Degraded", reason, message)
    update: dict[str, object] = {} if condition == EVALUATED else {"message": clip(message)}
    update["conditions"] = transition(old.conditions, shown, status.observed_generation, now)
    return status.model_copy(update=update)


def skew(unknown: Mapping[str, object]) -> dict[str, State]:
    """The condition `VERSION_SKEW` for these values by path; empty if there are none."""
    parts = ", ".join(f"{path}: {value!r:.100}" for path, value in unknown.items())
    then = "goes on without; upgrade the operator to the version of the CRDs, or remove these fields"
    text = f"this operator does not know {parts}, and {then}"
    return {VERSION_SKEW: state(True, "UnknownFields", text)} if unknown else {}


def skew_notices(unknown: Mapping[str, object], generation: int) -> list[Notice]:
    return [Notice("Warning", name, text, f"{generation}") for name, (_, _, text) in skew(unknown).items()]


def document(section: BaseModel, **options: Any) -> Object:
    """A status, or a part of a spec, as it is written: camelCase, without fields that are None."""
    return section.model_dump(mode="json", by_alias=True, exclude_none=True, **options)


def only_figures(old: Object, new: Object) -> bool:
    """Whether two statuses differ only in progress figures, those in messages of conditions included."""
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    counts = {item["message"] for item in new.get("conditions", []) if item["reason"] in COUNTED}
    told = new.get("message") if "message" in changed else None
    return changed <= FIGURES | {"conditions"} and told in {None, *counts} and _essence(old) == _essence(new)


def _essence(status: Object) -> list[tuple[str, ...]]:
    """Conditions without messages that have figures."""
    figures, names = {"True", LINK_ADEQUATE, *COUNTED}, ("type", "status", "reason", "message")
    found = [[item[name] for name in names] for item in status.get("conditions", [])]
    return [(*state, "" if figures.intersection(state) else message) for *state, message in found]


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, because a heal may take less than a second."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
