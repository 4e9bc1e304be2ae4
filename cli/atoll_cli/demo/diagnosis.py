"""Shows why something did not come up: conditions, last events, pods, last log lines, as kubectl prints them."""

from __future__ import annotations

from collections.abc import Mapping

from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl
from atoll_operator.api.group import LABEL_RUN

LINES = 40
"""Last lines of each answer that are kept."""
LOG_LINES = 8
"""Last log lines of each pod."""
CONDITIONS = (
    "jsonpath={range .items[*]}{.kind} {.metadata.name}: {range .status.conditions[*]}"
    '{.type}={.status} {.reason} ({.message}); {end}{"\\n"}{end}'
)


def diagnose(kubectl: Kubectl, run: str) -> str:
    """Return what a person would look at first. Never raises, because something is already broken."""
    pods = ("-l", f"{LABEL_RUN}={run}")
    return _told(
        kubectl,
        {
            "conditions": ("get", "trainingruns,learnerunits", "-o", CONDITIONS),
            "last events": ("get", "events", "--sort-by=.lastTimestamp"),
            "pods": ("get", "pods", "-o", "wide", *pods),
            "logs": ("logs", *pods, "--prefix", "--ignore-errors", f"--tail={LOG_LINES}"),
        },
    )


def operator_diagnosis(kubectl: Kubectl) -> str:
    """The operator's pods and the end of its log; never raises."""
    log = ("logs", "deployment/atoll-operator", f"--tail={LOG_LINES}", "--pod-running-timeout=2s")
    return _told(kubectl, {"operator": ("get", "pods", "-o", "wide"), "its log": log})


def _told(kubectl: Kubectl, questions: Mapping[str, tuple[str, ...]]) -> str:
    lines: list[str] = []
    for title, words in questions.items():
        try:
            told = kubectl.run(*words, timeout=15).splitlines()[-LINES:]
        except CommandError as error:
            told = [str(error)]
        lines += [f"{title}:", *(f"  {line}" for line in told or ["none"])]
    return "\n".join(lines)
