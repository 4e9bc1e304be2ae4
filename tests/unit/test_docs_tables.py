"""Every reason of a condition or a failure that code can give, and every message, is in a table of the docs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from atoll_operator.plan.pods import view as observe
from atoll_operator.plan.unit import failure, waiting
from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.messages import Welcome

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("trainingrun.md", "learnerunit.md")]
REASON = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)*")
GIVERS = {
    "state": 1, "lost": 0, "_idle": 1, "_reached": 3, "Outcome": 1, "PollFailed": 0, "Terminal": 0, "fail": 1,
}  # fmt: skip
"""Functions that take a reason, and the position of that argument."""
ROLES = ("Syncer", "Evaluator")
"""Roles with a status, for the reason `f"{role}Unavailable"`."""


@functools.cache
def constants() -> dict[str, str]:
    """Constants of modules of operator and runtime that look like reasons, by name."""
    paths = [path for folder in ("operator", "runtime") for path in (ROOT / folder).rglob("*.py")]
    statements = (node for path in paths for node in ast.parse(path.read_text()).body)
    return {
        getattr(target, "id", ""): node.value.value
        for node in statements
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if REASON.fullmatch(str(node.value.value))
    }


def words(node: ast.AST) -> Iterator[str]:
    """Reasons in an expression, as literals or by the name of a constant."""
    if isinstance(node, ast.JoinedStr):
        rest = node.values[-1]
        if isinstance(node.values[0], ast.FormattedValue) and isinstance(rest, ast.Constant):
            yield from (word for role in ROLES if REASON.fullmatch(word := f"{role}{rest.value}"))
    elif isinstance(node, ast.Name | ast.Attribute):
        if value := constants().get(getattr(node, "id", getattr(node, "attr", ""))):
            yield value
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and REASON.fullmatch(node.value):
            yield node.value
    elif not isinstance(node, ast.Compare):
        for part in ast.iter_child_nodes(node):
            yield from words(part)


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions that give a reason: an argument, or the value of an assignment to `reason`."""
    if isinstance(node, ast.Call):
        place = GIVERS.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
        if place is not None and len(node.args) > place:
            yield node.args[place]
    elif isinstance(node, ast.Assign):
        names = [getattr(name, "id", "") for name in ast.walk(node.targets[0])]
        yield from [node.value] if "reason" in names else []


def given(folder: Path) -> set[str]:
    """Reasons that the code of a package gives."""
    trees = (ast.parse(path.read_text()) for path in folder.rglob("*.py"))
    parts = (part for tree in trees for node in ast.walk(tree) for part in expressions(node))
    return {word for part in parts for word in words(part)}


def tables() -> set[str]:
    """Words in the first column of the pages' tables."""
    rows = (line for page in PAGES for line in page.read_text().splitlines() if line.startswith("| `"))
    return {word for row in rows for word in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_every_reason_of_a_condition_stands_in_a_table() -> None:
    reasons = given(ROOT / "operator")
    assert {"QuorumNotMet", "Placing", "SyncerUnavailable", "SpecChanged", "Suspending", "BackOff"} <= reasons
    assert sorted((reasons | {waiting.QUEUED, waiting.GATED}) - tables()) == []


def test_every_reason_of_a_failure_stands_in_a_table() -> None:
    of_pods = {
        value
        for name, value in vars(failure).items()
        if name.isupper() and isinstance(value, str) and REASON.fullmatch(value) and value != observe.STOPPED
    }
    assert {"NodeLost", "Hang", "OutOfMemory"} <= of_pods
    of_processes = given(ROOT / "runtime")
    assert {"DataInvalid", "ContractInvalid", "JournalFailed", "VersionMismatch"} <= of_processes
    assert sorted((of_pods | of_processes) - tables()) == []


def test_every_message_is_in_the_table_of_events() -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    table = page.split("| message | event |\n")[1].split("\n\n")[0]
    named = {word for row in table.splitlines() for word in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    kinds = Message.__subclasses__()
    assert Welcome in kinds
    assert sorted({kind.__name__ for kind in kinds} - named) == []
