"""`make figures`: every question at its published setting, as table, plot and JSON under docs/results/."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from atoll_cli.__main__ import main

FOLDER = Path("docs/results")
"""Below the root of a checkout, where this is called."""


@dataclass(frozen=True)
class Figure:
    """One answer that is kept."""

    name: str
    what: str
    question: tuple[str, ...]

    def command(self, folder: Path) -> tuple[str, ...]:
        """The arguments of `atoll` that write CSV and plot, and print the JSON."""
        csv, plot = (str(folder / f"{self.name}.{suffix}") for suffix in ("csv", "png"))
        return ("simulate", *self.question, "--json", "--csv", csv, "--plot", plot)


FIGURES = (
    Figure("goodput", "goodput over chips and learners, published beside ours", ("goodput",)),
    Figure("bandwidth", "Gbit/s for a compute utilisation, published beside ours", ("bandwidth",)),
    Figure(
        "heterogeneity", "quorum and grace on unequal learners, published beside ours", ("heterogeneity",)
    ),
    Figure("scavenge", "wall-clock with learners that come at night, published beside ours", ("scavenge",)),
    Figure(
        "plan",
        "a TrainingRun of three generations, one pool of them Spot, over a link that is too thin",
        ("plan", "manifests/samples/mixed-generations.yaml", "--mtbi", "v5e=3d", "--link-gbps", "0.9"),
    ),
)


def write(figure: Figure, folder: Path) -> int:
    """Writes the three files; the exit status of the command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(figure.command(folder))
    if status == 0:
        rows = [json.loads(line) for line in printed.getvalue().splitlines()]
        text = json.dumps(rows[0], indent=1) if len(rows) == 1 else _lines(rows)
        (folder / f"{figure.name}.json").write_text(text + "\n", encoding="utf-8")
    return status


def _lines(rows: list[object]) -> str:
    """A list with a row a line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"


def index(folder: Path) -> str:
    """docs/results/README.md."""
    rows = [
        f"| {figure.what} | [plot]({figure.name}.png), [CSV]({figure.name}.csv), [JSON]({figure.name}.json) "
        f"| `atoll {shlex.join(figure.command(folder))}` |"
        for figure in FIGURES
    ]
    return "\n".join(
        (
            "# Results of the simulator",
            "",
            "`make figures` writes this folder; the same code writes the same figures.",
            "[simulate](../simulate.md) says what they mean and assume. Without `--json` a command prints its table.",
            "",
            "| what | files | command |",
            "|---|---|---|",
            *rows,
            "",
        )
    )


def write_all(folder: Path) -> int:
    """Every figure; the highest exit status."""
    if not folder.is_dir():
        print(f"figures: there is no folder {folder}; call this at the root of a checkout", file=sys.stderr)
        return 2
    worst = 0
    for figure in FIGURES:
        begun = time.monotonic()
        status = write(figure, folder)
        print(
            f"{figure.name}: {'written' if status == 0 else 'failed'}, {time.monotonic() - begun:.1f} s",
            flush=True,
        )
        worst = max(worst, status)
    (folder / "README.md").write_text(index(folder), encoding="utf-8")
    return worst


if __name__ == "__main__":
    sys.exit(write_all(FOLDER))
