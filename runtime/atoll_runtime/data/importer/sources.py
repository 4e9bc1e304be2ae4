"""What the arguments of an import name: files, folders, globs and data sets."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from atoll_runtime.data.catalogue import DataError
from atoll_runtime.data.extras import extra
from atoll_runtime.data.importer.kinds import ArrayRecord, Dataset, Lines, Parquet, Source, Text
from atoll_runtime.data.importer.text import words

Format = Literal["text", "lines", "jsonl", "parquet", "arrayrecord", "datasets"]
SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
}
"""A file's format by its name, before `.gz`."""
ADVICE = {
    ".ndjson": "--format jsonl fits, where each line is a JSON object",
    ".json": "--format jsonl fits where each line is a JSON object, --format text where all of it is a document",
    ".csv": "--format lines fits where each line is a document; a table's column is read from jsonl and parquet",
}
"""For names that tell what a file is, and not which format its documents are in."""


def files(given: Sequence[str], form: Format | None, field: str) -> list[Source]:
    """The files that paths, folders and globs name, each once and sorted within its argument.

    Args:
        form: of all files; None: by each one's suffix, folders and globs leaving out what has no such suffix.
        field: of JSON objects, column of parquet files.

    Raises:
        DataError: an argument names no file, or a file's format is not known.
    """
    found: dict[Path, str] = {}
    for argument in given:
        for path, name in _expand(argument, form):
            found.setdefault(path.resolve(), name)
    makers: dict[str, Callable[[Path, str, int], Source]] = {
        "text": Text,
        "lines": Lines,
        "jsonl": lambda path, name, size: Lines(path, name, size, field),
        "parquet": lambda path, name, size: Parquet(path, name, size, field),
        "arrayrecord": ArrayRecord,
    }
    sources = []
    for path, name in found.items():
        kind = form or _format(path)
        if kind is None:
            raise DataError(f"{path}: its name does not tell its format; {_advice(path)}")
        sources.append(makers[kind](path, name, path.stat().st_size))
    return sources


def dataset(name: str, config: str, split: str, field: str) -> Source:
    """A data set of the Hugging Face hub, or a folder that `datasets` can load.

    Args:
        config: one of its configurations; empty: it has one alone, or a default.

    Raises:
        DataError: it cannot be loaded, or has no such column.
    """
    package = extra("datasets", f"data set {name}")
    local = Path(name).is_dir()
    try:
        rows = package.load_dataset(
            name, config or None, split=split, **(_anew(package, name) if local else {})
        )
    except Exception as error:  # the package and its storage clients share no base class
        asked = f"--config {config!r}" if config else "no --config"
        raise DataError(f"data set {name}: {asked}, --split {split!r}: {words(error)}") from error
    if field not in rows.column_names:
        there = ", ".join(map(repr, rows.column_names))
        raise DataError(f"data set {name}: column {field!r} is missing; there is {there}")
    return Dataset(rows, f"{name}:{len(rows)}", int(rows.dataset_size or 0), field, local)


def _anew(package: Any, folder: str) -> dict[str, str]:
    """How to load a folder: what the package keeps of one it gives again for changed files, and for a folder elsewhere
    of the same name."""
    place = hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()
    return {"cache_dir": f"{package.config.HF_DATASETS_CACHE}/{place}", "download_mode": "force_redownload"}


def _expand(argument: str, form: Format | None) -> list[tuple[Path, str]]:
    """Files, each with its name as it stays the same wherever the folder is mounted."""
    path = Path(argument)
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir():
        found = [(each, str(each.relative_to(path))) for each in path.rglob("*")]
    else:
        found = [(each, each.name) for each in map(Path, glob.glob(argument, recursive=True))]
    inside = sorted((each, name) for each, name in found if each.is_file())
    if not inside:
        why = (
            "no file is in this folder" if path.is_dir() else "no such file or folder, and no file matches it"
        )
        raise DataError(f"{argument}: {why}")
    chosen = [(each, name) for each, name in inside if form is not None or _format(each) is not None]
    if not chosen:
        raise DataError(
            f"{argument}: no name of its files ({len(inside)}) tells a format; {_advice(inside[0][0])}"
        )
    return chosen


def _advice(path: Path) -> str:
    """Which option would be right."""
    suffix = _suffix(path)
    return ADVICE.get(suffix, "name it with --format: text, lines, jsonl, parquet or arrayrecord")


def _format(path: Path) -> Format | None:
    return SUFFIXES.get(_suffix(path))


def _suffix(path: Path) -> str:
    """The last one before `.gz`; empty where there is none."""
    return next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "")
