"""`make figures`: runs the commands of docs/results/README.md, and writes their output beside it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from atoll_cli.__main__ import main

FOLDER = Path("docs/results")
"""Relative to the root of a checkout, where this must be called."""
COMMAND = re.compile(r"`atoll (simulate .+?)`")


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of each `atoll simulate` command on a page. Each has `--json`."""
    return [shlex.split(words) for words in COMMAND.findall(page.read_text(encoding="utf-8"))]


def write(command: Sequence[str], folder: Path) -> int:
    """Runs a command, and writes its JSON into a folder. Returns the exit status."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(command)
    if status == 0:
        rows = printed.getvalue().splitlines()
        text = (
            json.dumps(json.loads(rows[0]), indent=1) if len(rows) == 1 else "[\n" + ",\n".join(rows) + "\n]"
        )
        (folder / f"{command[1]}.json").write_text(text + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    for command in commands(FOLDER / "README.md"):
        print(command[1], flush=True)
        if status := write(command, FOLDER):
            sys.exit(status)
