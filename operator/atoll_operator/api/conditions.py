"""`metav1.Condition` and the types of conditions that each kind carries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import keyed_by
from atoll_runtime.contract import Report

RUN_CONDITIONS = ("Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed", "Stalled")
"""`Stalled` is for tools that follow kstatus (Helm, Argo CD, Flux): the run failed, or cannot be as its spec says."""
EVALUATED = "Evaluated"
"""Besides, of a run that has `spec.evaluation`."""
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Reason = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
]
Message = Annotated[str, Field(max_length=4096)]


class Condition(Report):
    """One aspect of the state, with its reason."""

    type: Annotated[str, Field(max_length=64)]
    """Name of the condition, such as `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Unknown: it cannot be told now."""
    reason: Reason
    """Reason in one word, for programs."""
    message: Message = ""
    """Explanation for people. May be empty."""
    last_transition_time: Time
    """When `status` changed last."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """`metadata.generation` of the spec that this condition is about."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), keyed_by("type")]
