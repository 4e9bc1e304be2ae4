"""How an answer leaves: a table on the terminal, JSON lines, CSV, a plot."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.text import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
PICTURES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Column:
    """One column of the table; JSON and CSV have every key of the rows."""

    key: str
    title: str
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Report:
    """An answer. All rows have the same keys; their values go into JSON as they are."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    """Lines below the table: constants, mean errors, what was assumed."""
    draw: Callable[[Figure], None] | None = None
    above: tuple[str, ...] = ()
    """Lines, or whole tables, between title and table."""
    document: Mapping[str, Any] | None = None
    """What JSON says where the answer is one object and not its rows."""


def as_share(value: float) -> str:
    """`95 %`."""
    return f"{100 * value:.4g} %"


def as_gbps(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def add_output_options(question: argparse.ArgumentParser) -> None:
    """Where the answer goes."""
    question.add_argument("--json", action="store_true", help="one JSON object a row, a line each")
    question.add_argument("--csv", type=Path, metavar="PATH", help="write the rows there too")
    question.add_argument("--plot", type=Path, metavar="PATH", help="draw them there too, PNG, PDF or SVG")


def check_output(options: argparse.Namespace) -> None:
    """Raises `UsageError`, before anything is simulated, for a file that could not be written after it."""
    for option, path in (("--csv", options.csv), ("--plot", options.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{option} {str(path)!r}: there is no folder {path.absolute().parent}")
        if path is not None and path.is_dir():
            raise UsageError(f"{option} {str(path)!r}: a file is wanted, this is a folder")
    if options.plot is not None and options.plot.suffix not in PICTURES:
        raise UsageError(f"--plot {str(options.plot)!r}: a name that ends in .png, .pdf or .svg is wanted")


def deliver(report: Report, options: argparse.Namespace) -> None:
    """Prints the table, or JSON, and writes what was asked for.

    Raises:
        UsageError: nothing to draw, or not in that format.
        CommandError: a file cannot be written.
    """
    check_output(options)
    if options.plot is not None and report.draw is None:
        raise UsageError(f"--plot {str(options.plot)!r}: there is nothing to draw for this question")
    for option, path, write in (("--csv", options.csv, _csv), ("--plot", options.plot, _plot)):
        if path is not None:
            try:
                write(report, path)
            except OSError as error:
                raise CommandError(f"{option} {str(path)!r}: {error.strerror or error}") from error
    if options.json:
        for row in report.rows if report.document is None else (report.document,):
            sys.stdout.write(json.dumps(row, sort_keys=False, allow_nan=False) + "\n")
        return
    print("\n".join((report.title, *report.above)))
    head = [column.title for column in report.columns]
    print(table(head, [[_cell(column, row) for column in report.columns] for row in report.rows]))
    for note in report.notes:
        print(note)


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row[column.key]
    return "-" if value is None else column.show(value)


def _csv(report: Report, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(report.rows[0]))
        writer.writeheader()
        for row in report.rows:
            nested = {
                key: json.dumps(value) for key, value in row.items() if isinstance(value, (list, tuple, dict))
            }
            writer.writerow({**row, **nested})


def _plot(report: Report, path: Path) -> None:
    from matplotlib.figure import Figure

    assert report.draw is not None
    figure = Figure(figsize=(8, 5), layout="constrained")
    report.draw(figure)
    figure.savefig(path, dpi=DPI)
