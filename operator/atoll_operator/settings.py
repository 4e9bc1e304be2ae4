"""The operator's settings, read from its environment once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from atoll_operator.api.podtemplate import MAX_VALUE, MAX_VARIABLES
from atoll_operator.plan.limits import NamespaceLimits

SYNCER_URL = "https://{run}-syncer-{shard}.{run}-syncer.{namespace}.svc:7401/status"
EVALUATOR_URL = "https://{run}-evaluator-0.{run}-evaluator.{namespace}.svc:7401/status"
LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
"""A namespace. Watches of any other name, such as a pattern, would never have a first list, or an empty one."""


class SettingsError(Exception):
    """A setting is missing or wrong; the message names the variable, the value and what would be right."""


def _split(value: Any) -> Any:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _parse(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, populate_by_name=True, alias_generator=lambda name: f"ATOLL_{name.upper()}"
    )

    runtime_image: str
    """Image of learners, syncers and evaluators."""
    namespaces: Annotated[tuple[Annotated[str, Field(pattern=LABEL)], ...], BeforeValidator(_split)] = ()
    """Empty: the whole cluster."""
    runtime_env: Annotated[
        dict[str, Annotated[str, Field(max_length=MAX_VALUE)]],
        Field(max_length=MAX_VARIABLES),  # as many as the status of a run keeps
        BeforeValidator(_parse),
    ] = {}
    """Added to every runtime pod."""
    limits: Annotated[NamespaceLimits, BeforeValidator(_parse)] = NamespaceLimits()
    """Limits for the runs of each namespace."""
    runtime_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    health_port: int = Field(8080, ge=0, le=65535)
    metrics_port: int = Field(0, ge=0, le=65535)
    """0: metrics are not served."""
    log_format: Literal["json", "text"] = "json"
    resync_seconds: float = Field(300.0, ge=1, le=86_400)
    poll_seconds: float = Field(2.0, ge=0.01, le=3600)
    syncer_url: str = Field(SYNCER_URL, pattern=r"^([^{}]|\{(run|namespace|shard)\})*$")
    evaluator_url: str = Field(EVALUATOR_URL, pattern=r"^([^{}]|\{(run|namespace)\})*$")
    stuck_seconds: float = Field(180.0, ge=1, le=3600)
    """If a key waits or is handled for longer, the process is not alive, unless a request to the API server is open."""
    lease_namespace: str = Field("", pattern=rf"{LABEL}|^$")
    """Namespace of the Lease that decides which of several operators leads. Empty: this one leads without a Lease."""
    lease_seconds: int = Field(10, ge=3, le=120)
    """Another operator follows a killed leader after this time. A leader that cannot renew stops after 70 % of it."""
    identity: str = ""
    """Name of this pod in the Lease. No other live process may have it. Empty: generated at the start."""


def read(environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError."""
    given = {name: value for name, value in environment.items() if name.startswith("ATOLL_") and value}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name, wrong = first["loc"][0], first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise SettingsError(f"{name} is not set; it names the image of learners and syncers") from error
        part = "".join(f", {step}" for step in first["loc"][1:])
        raise SettingsError(f"{name}{part} is {given[str(name)][:200]!r}: {wrong}") from error
