"""Compares lines of Python per area, product and tests with those in docs/size.json, so that no total grows unnoticed.

python .ci/size.py            print the table; exit with 1 if a total grew by more than 2 %
python .ci/size.py --write    record the current lines; say in the commit message why they grew
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "size.json"
PRODUCT = ("operator", "runtime", "cli", "local", "bench")
OPERATOR_TESTS = re.compile(
    r"tests/((unit|control|support)/operator/|control/conftest\.py|schedules/test_operator_)"
)
"""The tests of `operator/atoll_operator`, and support code that only they use. They count as a separate area."""
GROWTH = 0.02
"""The share by which a total may exceed the recorded one."""

Sizes = dict[str, dict[str, int]]
"""Lines by total (`product`, `tests`) and area."""


def area(path: str) -> tuple[str, str] | None:
    """The total and the area in which this file counts; None if it counts in none."""
    first, *rest = path.split("/")
    if OPERATOR_TESTS.match(path):
        return "tests", "operator"
    if first == "tests":
        return "tests", rest[0] if len(rest) > 1 else "conftest"
    return ("product", first) if first in PRODUCT else None


def measure(root: Path, paths: Iterable[str]) -> Sizes:
    """Lines of these files, blank lines and docstrings included."""
    totals: dict[str, Counter[str]] = {"product": Counter(), "tests": Counter()}
    for path in paths:
        if (found := area(path)) and (root / path).exists():
            totals[found[0]][found[1]] += len((root / path).read_bytes().splitlines())
    return {name: dict(sorted(areas.items())) for name, areas in totals.items()}


def table(now: Sizes, recorded: Sizes) -> str:
    """One row per area and one per total: current lines, recorded lines, and the difference."""
    rows = [f"{'lines':<22}{'now':>8}{'recorded':>10}{'change':>8}"]
    for total in now:
        areas = sorted({*now[total], *recorded[total]})
        pairs = [(name, now[total].get(name, 0), recorded[total].get(name, 0)) for name in areas]
        pairs.append(("total", sum(now[total].values()), sum(recorded[total].values())))
        rows += [f"{total + '/' + name:<22}{new:>8,}{old:>10,}{new - old:>+8,}" for name, new, old in pairs]
    return "\n".join(rows)


def grown(now: Sizes, recorded: Sizes) -> list[str]:
    """One message per total that exceeds the recorded one by more than `GROWTH`."""
    pairs = {total: (sum(now[total].values()), sum(recorded[total].values())) for total in now}
    return [
        f"{total}: {new:,} lines, more than {GROWTH:.0%} above the {old:,} in docs/size.json. Remove lines, or run "
        "`make size ARGS=--write` and explain the growth in the commit message."
        for total, (new, old) in pairs.items()
        if new > old * (1 + GROWTH)
    ]


def main(arguments: list[str]) -> int:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    now = measure(ROOT, listed.stdout.splitlines())
    if arguments == ["--write"]:
        RECORD.write_text(json.dumps(now, indent=2) + "\n")
    recorded: Sizes = json.loads(RECORD.read_text())
    print(table(now, recorded))
    failures = grown(now, recorded)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
