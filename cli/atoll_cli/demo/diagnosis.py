"""Why something did not come: conditions, last events, last log lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl
from atoll_cli.views import LABEL_RUN

EVENTS = 12
LOG_LINES = 8


def diagnose(kubectl: Kubectl, namespace: str, run: str) -> str:
    """What a person would look at first; never raises, for something is broken already."""
    parts = [
        _section("conditions", lambda: _conditions(kubectl, namespace)),
        _section("last events", lambda: _events(kubectl, namespace)),
        _section("pods", lambda: _pods(kubectl, namespace, run)),
    ]
    return "\n".join(parts)


def operator_diagnosis(kubectl: Kubectl, namespace: str) -> str:
    """The operator's pods and the end of its log; never raises."""

    def lines() -> Iterable[str]:
        yield kubectl.run("-n", namespace, "get", "pods", "-o", "wide", timeout=15).rstrip()
        log = ("logs", "deployment/atoll-operator", f"--tail={LOG_LINES}", "--pod-running-timeout=2s")
        yield kubectl.run("-n", namespace, *log, timeout=15).rstrip()

    return _section("operator", lines)


def _section(title: str, lines: Any) -> str:
    try:
        body = [f"  {line}" for text in lines() for line in text.splitlines()]
    except CommandError as error:
        body = [f"  {error}"]
    return "\n".join([f"{title}:", *(body or ["  none"])])


def _conditions(kubectl: Kubectl, namespace: str) -> Iterable[str]:
    for item in kubectl.get("trainingruns,learnerunits", "-n", namespace, timeout=15)["items"]:
        states = [_state(condition) for condition in item.get("status", {}).get("conditions", [])]
        text = "; ".join(states) or "none yet: is the operator running?"
        yield f"{item['kind']} {item['metadata']['name']}: {text}"


def _state(condition: Mapping[str, Any]) -> str:
    message = condition.get("message", "")
    words = f"{condition['type']}={condition['status']} {condition.get('reason', '')}"
    return f"{words} ({message})" if message else words


def _events(kubectl: Kubectl, namespace: str) -> Iterable[str]:
    items = kubectl.get("events", "-n", namespace, "--sort-by=.lastTimestamp", timeout=15)["items"]
    for item in items[-EVENTS:]:
        # Some events are about a kind as a whole, and name none of it.
        involved = " ".join(item["involvedObject"].get(key, "") for key in ("kind", "name"))
        yield f"{involved.strip()}: {item.get('reason', '')}: {item.get('message', '')}"


def _pods(kubectl: Kubectl, namespace: str, run: str) -> Iterable[str]:
    for pod in kubectl.get("pods", "-n", namespace, "-l", f"{LABEL_RUN}={run}", timeout=15)["items"]:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        node = pod["spec"].get("nodeName", "no node")
        yield f"{name}: {status.get('phase', '-')} on {node} {status.get('message', '')}"
        if status.get("phase") == "Pending":
            continue
        try:
            log = kubectl.run("-n", namespace, "logs", name, f"--tail={LOG_LINES}", timeout=15)
        except CommandError as error:
            log = str(error)
        yield from (f"  {line}" for line in log.splitlines())
