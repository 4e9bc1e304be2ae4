"""The README of the chart, with a table of values from the comments of values.yaml. `crds.py` writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[1] / "charts" / "atoll"
BEGIN, END = "<!-- values: written by `make crds` -->", "<!-- end of values -->"
KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(.*)$")
HEAD = ("| value | default | |", "|---|---|---|")


def rows(text: str) -> Iterator[str]:
    """A row for each value that is not a map of other values, and for each map with a comment."""
    values, path, comment = yaml.safe_load(text), list[str](), list[str]()
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
        elif (found := KEY.match(line)) is None:
            comment = []
        else:
            path = [*path[: len(found[1]) // 2], found[2]]
            value = _at(values, path)
            default = "" if _has_children(value, found[3]) else f"`{json.dumps(value)}`"
            if default or comment:
                words = " ".join(comment).replace("|", "\\|")
                yield f"| `{'.'.join(path)}` | {default} | {words} |"
            comment = []


def _has_children(value: Any, after: str) -> bool:
    return isinstance(value, dict) and bool(value) and not after.strip()


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def page() -> str:
    """The README with the current table."""
    text = (CHART / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join((*HEAD, *rows((CHART / "values.yaml").read_text())))
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
