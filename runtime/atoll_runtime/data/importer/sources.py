"""Finds the files that an import's arguments name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from atoll_runtime.data.catalogue import DataError
from atoll_runtime.data.importer.documents import Format, Source

SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
}
"""Formats by suffix, without `.gz`."""
ADVICE = {
    ".ndjson": "--format jsonl fits, where each line is a JSON object",
    ".json": "--format jsonl fits where each line is a JSON object, --format text where all of it is a document",
    ".csv": "--format lines fits where each line is a document; a table's column is read from jsonl and parquet",
}
"""Advice for suffixes that do not determine the format."""


def files(given: Sequence[str], form: Format | None, field: str) -> list[Source]:
    """Files named by paths, folders and globs, each once and sorted within its argument.

    Args:
        form: format of all files; None: by suffix. Folders and globs then skip files with unknown suffixes.
        field: field of JSON objects, column of parquet files.

    Raises:
        DataError: an argument names no file, a folder cannot be read, or a file's format is not known.
    """
    found: dict[Path, Path] = {}
    for argument in given:
        for path in _expand(argument, form):
            found.setdefault(path.resolve(), path)
    sources = []
    for path in found.values():
        kind = form or SUFFIXES.get(_suffix(path))
        if kind is None:
            raise DataError(f"{path}: its name does not tell its format; {_advice(path)}")
        sources.append(Source(path, path.stat().st_size, kind, field))
    return sources


def _expand(argument: str, form: Format | None) -> list[Path]:
    path = Path(argument)
    if path.is_file():
        return [path]
    folder = path.is_dir()
    found = _below(path) if folder else map(Path, glob.glob(argument, recursive=True))
    inside = sorted(each for each in found if each.is_file())
    if not inside:
        why = "no file is in this folder" if folder else "no such file or folder, and no file matches it"
        raise DataError(f"{argument}: {why}")
    chosen = [each for each in inside if form is not None or _suffix(each) in SUFFIXES]
    if not chosen:
        raise DataError(
            f"{argument}: no name of its files ({len(inside)}) tells a format; {_advice(inside[0])}"
        )
    return chosen


def _below(folder: Path) -> Iterator[Path]:
    """Files below a folder. Like a glob, it leaves out names that begin with a dot. Raises `DataError`."""
    for where, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = (name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in names if not name.startswith("."))


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: {error.strerror}") from error


def _advice(path: Path) -> str:
    """Which option to use."""
    return ADVICE.get(_suffix(path), "name it with --format: text, lines, jsonl or parquet")


def _suffix(path: Path) -> str:
    """The last suffix before `.gz`; empty if there is none."""
    return next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "")
