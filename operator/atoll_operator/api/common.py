"""Parts that both resources share: bounded maps, tolerations, resources, the token ledger."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from atoll_runtime.contract import Report, Section

Name = Annotated[str, Field(min_length=1, max_length=253)]
"""Of an object of the cluster."""
LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
Label = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
NodeSelector = Annotated[dict[str, Label], Field(max_length=16)]
INT_OR_STRING: dict[str, Any] = {"x-kubernetes-int-or-string": True, "maxLength": 32}
Quantity = Annotated[int | str, WithJsonSchema(INT_OR_STRING)]
Quantities = Annotated[dict[str, Quantity], Field(max_length=8)]


QueueName = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")
]
"""Of a LocalQueue or a WorkloadPriorityClass: it is the value of a label."""


class Toleration(Section):
    """As in a pod."""

    key: Annotated[str, Field(max_length=253)] | None = None
    """Of the taint; every taint where not given."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: of this value. Exists: of any."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Of the taint; every effect where not given."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """For which a NoExecute taint is tolerated; for ever where not given."""


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=16)]


class Resources(Section):
    """Requests and limits of a container; `google.com/tpu` is set by the operator."""

    requests: Quantities = Field(default_factory=dict)
    """What the scheduler keeps free, such as cpu and memory."""
    limits: Quantities = Field(default_factory=dict)
    """What the container may use."""


MAX_REASONS = 16
"""Reasons that a ledger tells apart."""


class Cost(Report):
    """What failures cost, from each to the first merge after it, or until the unit was given up or taken away; heals
    that are under way are not in it yet. What fails again before it was merged is part of the same heal."""

    failures: int = 0
    """Heals that failures began."""
    seconds: float = 0.0
    """Of these heals together."""
    chip_seconds: float = 0.0
    """Seconds × chips of the unit."""
    steps: int = 0
    """Inner steps that the unit would have made in that time, by its pace."""


class CostStatus(Cost):
    """The sum, and its parts."""

    by_reason: Annotated[dict[str, Cost], Field(max_length=MAX_REASONS)] = Field(default_factory=dict)
    """By the reason of the failure that began the heal; `Other`: of all reasons that came after the first fifteen."""


class LedgerStatus(Report):
    """What became of every token trained on, by all incarnations.

    In token-fragments: a token counts once for each of `fragments`, so that tokens are a figure divided by `fragments`.
    `trained` = `merged` + `inFlight` + all of `discarded`.
    """

    fragments: int = 0
    """Parts of the model, over all shards of the syncer, that a token is merged into one by one."""
    trained: int = 0
    """On them, by all incarnations."""
    merged: int = 0
    """Into the global model."""
    in_flight: int = 0
    """Trained on, and neither merged nor given up yet."""
    discarded: Annotated[dict[str, int], Field(max_length=MAX_REASONS)] = Field(default_factory=dict)
    """By reason, such as `Overwritten` or `Replaced`."""
