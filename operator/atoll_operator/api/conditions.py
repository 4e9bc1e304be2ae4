"""`metav1.Condition` and the types of conditions that each kind carries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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
    """One state, with the reason for it."""

    type: Annotated[str, Field(max_length=64)]
    """What it tells of, such as `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Unknown: nothing can be said of it now."""
    reason: Reason
    """Why it is so, in one word for programs."""
    message: Message = ""
    """The same for people, with what it is about; may be empty."""
    last_transition_time: Time
    """When `status` became what it is."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """`metadata.generation` of the spec that it was found for."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16)]
