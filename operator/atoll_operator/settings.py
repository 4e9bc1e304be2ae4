"""The operator's settings, read from its environment once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atoll_operator.api.podtemplate import MAX_VALUE, MAX_VARIABLES

SYNCER_URL = "https://{run}-syncer-{shard}.{run}-syncer.{namespace}.svc:7401/status"
EVALUATOR_URL = "https://{run}-evaluator-0.{run}-evaluator.{namespace}.svc:7401/status"
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class SettingsError(Exception):
    """A setting is missing or wrong; the message names the variable, the value and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the operator can be told."""

    runtime_image: str
    namespaces: tuple[str, ...] = ()
    """Empty: the whole cluster."""
    runtime_environment: Mapping[str, str] = field(default_factory=dict)
    """Added to every runtime pod."""
    pull_policy: str = "IfNotPresent"
    health_port: int = 8080
    log_format: Literal["json", "text"] = "json"
    resync_seconds: float = 300.0
    poll_seconds: float = 2.0
    syncer_url: str = SYNCER_URL
    evaluator_url: str = EVALUATOR_URL
    stuck_seconds: float = 180.0
    """A key at work for longer makes the process not alive; nine full time-outs of one call."""
    lease_namespace: str = ""
    """Of the Lease by which one of several operators leads. Empty: this one leads without asking."""
    lease_seconds: int = 10
    """A leader that was killed is followed after this long; one that cannot renew stops after 70 % of it."""
    identity: str = ""
    """Of this pod in the Lease, and of no other process that may be alive. Empty: made up at the start."""


def read(environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError."""
    image = environment.get("ATOLL_RUNTIME_IMAGE", "")
    if not image:
        raise SettingsError("ATOLL_RUNTIME_IMAGE is not set; it names the image of learners and syncers")
    policy = environment.get("ATOLL_RUNTIME_PULL_POLICY") or "IfNotPresent"
    if policy not in ("Always", "IfNotPresent", "Never"):
        raise SettingsError(f"ATOLL_RUNTIME_PULL_POLICY is {policy!r}; one of Always, IfNotPresent, Never")
    log_format = environment.get("ATOLL_LOG_FORMAT") or "json"
    if log_format not in ("json", "text"):
        raise SettingsError(f"ATOLL_LOG_FORMAT is {log_format!r}; one of json, text")
    names = (name.strip() for name in environment.get("ATOLL_NAMESPACES", "").split(","))
    lease_namespace = environment.get("ATOLL_LEASE_NAMESPACE", "")
    if lease_namespace and not NAMESPACE.fullmatch(lease_namespace):
        raise SettingsError(
            f"ATOLL_LEASE_NAMESPACE is {lease_namespace!r}; the name of a namespace is needed"
        )
    lease_seconds = _number(environment, "ATOLL_LEASE_SECONDS", 10, 3, 120)
    if lease_seconds != int(lease_seconds):
        raise SettingsError(f"ATOLL_LEASE_SECONDS is {lease_seconds}; a Lease has whole seconds")
    return Settings(
        runtime_image=image,
        namespaces=tuple(name for name in names if name),
        runtime_environment=_object(environment, "ATOLL_RUNTIME_ENV"),
        pull_policy=policy,
        health_port=int(_number(environment, "ATOLL_HEALTH_PORT", 8080, 0, 65535)),
        log_format="json" if log_format == "json" else "text",
        resync_seconds=_number(environment, "ATOLL_RESYNC_SECONDS", 300, 1, 86_400),
        poll_seconds=_number(environment, "ATOLL_POLL_SECONDS", 2, 0.05, 3600),
        syncer_url=_url(environment, "ATOLL_SYNCER_URL", SYNCER_URL, run="r", namespace="n", shard=0),
        evaluator_url=_url(environment, "ATOLL_EVALUATOR_URL", EVALUATOR_URL, run="r", namespace="n"),
        stuck_seconds=_number(environment, "ATOLL_STUCK_SECONDS", 180, 1, 3600),
        lease_namespace=lease_namespace,
        lease_seconds=int(lease_seconds),
        identity=environment.get("ATOLL_IDENTITY", ""),
    )


def _url(environment: Mapping[str, str], name: str, default: str, **fields: str | int) -> str:
    """`fields` are filled in: an example of each."""
    url = environment.get(name) or default
    try:
        url.format(**fields)
    except (KeyError, IndexError, ValueError) as error:
        wanted = ", ".join(f"{{{field}}}" for field in fields)
        raise SettingsError(f"{name} is {url!r}; only {wanted} are filled in") from error
    return url


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = environment.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise SettingsError(f"{name} is {text!r}; a number from {least} to {most} is needed")
    return value


def _object(environment: Mapping[str, str], name: str) -> dict[str, str]:
    text = environment.get(name) or "{}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise SettingsError(f"{name} is {text!r}; a JSON object of strings is needed")
    if len(value) > MAX_VARIABLES or any(len(item) > MAX_VALUE for item in value.values()):
        raise SettingsError(
            f"{name} has {len(value)} variables, the longest of {max(map(len, value.values()))} characters; "
            f"the status of a run keeps at most {MAX_VARIABLES} of at most {MAX_VALUE}"
        )
    return value
