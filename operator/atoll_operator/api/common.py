"""Parts that both resources share: bounded maps, tolerations, resources."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from atoll_runtime.contract import Section

Label = Annotated[str, Field(max_length=63)]
NodeSelector = Annotated[dict[str, Label], Field(max_length=16)]
INT_OR_STRING: dict[str, Any] = {"x-kubernetes-int-or-string": True, "maxLength": 32}
Quantity = Annotated[int | str, WithJsonSchema(INT_OR_STRING)]
Quantities = Annotated[dict[str, Quantity], Field(max_length=8)]


class Toleration(Section):
    """As in a pod."""

    key: Annotated[str, Field(max_length=253)] | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=16)]


class Resources(Section):
    """Requests and limits of a container; `google.com/tpu` is set by the operator."""

    requests: Quantities = Field(default_factory=dict)
    limits: Quantities = Field(default_factory=dict)
