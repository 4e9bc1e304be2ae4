"""Where documents come from. A place in a source is a number from which its reading can go on."""

from __future__ import annotations

import glob
import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast

from atoll_runtime.data.catalogue import DataError
from atoll_runtime.data.extras import extra

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
ROWS = 256
"""Rows of a parquet file or a dataset that are decoded at once."""


class Source(Protocol):
    """Documents in an order that does not change."""

    @property
    def name(self) -> str:
        """The same wherever the source is mounted."""

    @property
    def size(self) -> int:
        """Bytes, for the time left; 0: unknown."""

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """Text, the place after it, and which fraction of the source lies before that, from `place` on.

        Raises:
            DataError: the source cannot be read, or a document is not what it must be.
        """


@dataclass(frozen=True, slots=True)
class Text:
    """A file that is one document."""

    path: Path
    name: str
    size: int

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are 0 and 1."""
        if place == 0:
            with _reading(self.path) as file:
                yield _text(file.read(), self.path, 0), 1, 1.0


@dataclass(frozen=True, slots=True)
class Lines:
    """A document in each line that is not blank, plain or as a field of a JSON object."""

    path: Path
    name: str
    size: int
    field: str | None = None
    """Of the object; None: the line itself."""

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are offsets in bytes, of what was unpacked where the file is packed."""
        with _reading(self.path) as file:
            file.seek(place)
            known = self.path.suffix != ".gz" and self.size > 0
            for line in file:
                start, place = place, place + len(line)
                if line.strip():
                    text = _text(line, self.path, start)
                    found = text.rstrip("\r\n") if self.field is None else self._value(text, start)
                    yield found, place, place / self.size if known else 0.0

    def _value(self, text: str, start: int) -> str:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise DataError(f"{_where(self.path, start)}: not JSON: {error}") from error
        if not isinstance(value, dict) or self.field not in value:
            there = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{_where(self.path, start)}: field {self.field!r} is missing; there is {there}")
        return _string(value[self.field], lambda: f"{_where(self.path, start)}: field {self.field!r}")


@dataclass(frozen=True, slots=True)
class Parquet:
    """A document in each row of one column."""

    path: Path
    name: str
    size: int
    field: str

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are rows. Whole row groups before `place` are not read."""
        arrow = extra("pyarrow", str(self.path))
        parquet = extra("pyarrow.parquet", str(self.path))
        try:
            with parquet.ParquetFile(self.path) as file:
                if self.field not in file.schema_arrow.names:
                    there = ", ".join(map(repr, file.schema_arrow.names))
                    raise DataError(f"{self.path}: column {self.field!r} is missing; there is {there}")
                yield from self._rows(file, place)
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: {error}") from error

    def _rows(self, file: Any, place: int) -> Iterator[tuple[str, int, float]]:
        total, row = file.metadata.num_rows, 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if row + count <= place:
                row += count
                continue
            for batch in file.iter_batches(ROWS, row_groups=[group], columns=[self.field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    if row > place:
                        yield (
                            _string(value, partial(_cell, str(self.path), row, self.field)),
                            row,
                            row / total,
                        )


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """A document in each record, as UTF-8."""

    path: Path
    name: str
    size: int

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are records."""
        module = extra("array_record.python.array_record_module", str(self.path))
        try:
            with closing(module.ArrayRecordReader(str(self.path))) as reader:
                total = reader.num_records()
                while place < total:
                    records = reader.read(list(range(place, min(place + ROWS, total))))
                    for record in records:
                        place += 1
                        try:
                            text = record.decode()
                        except UnicodeDecodeError as error:
                            raise DataError(f"{self.path}: record {place}: not UTF-8: {error}") from error
                        yield text, place, place / total
        except (RuntimeError, ValueError, OSError) as error:
            raise DataError(f"{self.path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Dataset:
    """A column of a Hugging Face data set, which the package `datasets` gets."""

    rows: Any
    """A `datasets.Dataset`."""
    name: str
    size: int
    field: str

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are rows."""
        total = len(self.rows)
        while place < total:
            for value in self.rows[place : place + ROWS][self.field]:
                place += 1
                yield (
                    _string(value, partial(_cell, self.name, place, self.field)),
                    place,
                    place / total,
                )


def files(given: Sequence[str], form: Format | None, field: str) -> list[Source]:
    """The files that paths, folders and globs name, each once and sorted within its argument.

    Args:
        form: of all files; None: by each one's suffix, folders leaving out what has no such suffix.
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
            raise DataError(f"{path}: its name does not tell its format; name one of {', '.join(makers)}")
        sources.append(makers[kind](path, name, path.stat().st_size))
    return sources


def dataset(name: str, split: str, field: str) -> Source:
    """A data set of the Hugging Face hub, or a folder that `datasets` can load.

    Raises:
        DataError: it cannot be loaded, or has no such column.
    """
    package = extra("datasets", f"data set {name}")
    try:
        rows = package.load_dataset(name, split=split)
    except Exception as error:  # the package and its storage clients share no base class
        raise DataError(f"data set {name}: split {split!r}: {error}") from error
    if field not in rows.column_names:
        there = ", ".join(map(repr, rows.column_names))
        raise DataError(f"data set {name}: column {field!r} is missing; there is {there}")
    return Dataset(rows, f"{name}:{split}:{len(rows)}", int(rows.dataset_size or 0), field)


def _expand(argument: str, form: Format | None) -> list[tuple[Path, str]]:
    """Files, each with its name as it stays the same wherever the folder is mounted."""
    path = Path(argument)
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file())
        chosen = [each for each in inside if form is not None or _format(each) is not None]
        if not chosen:
            raise DataError(f"{argument}: none of the {len(inside)} files in this folder can be imported")
        return [(each, str(each.relative_to(path))) for each in chosen]
    matching = [path] if path.is_file() else sorted(map(Path, glob.glob(argument, recursive=True)))
    if not any(each.is_file() for each in matching):
        raise DataError(f"{argument}: no such file or folder, and no file matches it")
    return [(each, each.name) for each in matching if each.is_file()]


def _format(path: Path) -> Format | None:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    return SUFFIXES.get(suffixes[-1]) if suffixes else None


@contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked; what goes wrong with it names it."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error}") from error


def _text(raw: bytes, path: Path, start: int) -> str:
    """Without the byte order mark that some editors put before a file's first character."""
    try:
        return raw.removeprefix(BOM_UTF8 if start == 0 else b"").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{_where(path, start)}: not UTF-8: {error}") from error


def _string(value: object, where: Callable[[], str]) -> str:
    """Text that has a UTF-8 form: a lone surrogate, which JSON can express, becomes U+FFFD; null is an empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where()}: a text is wanted, not {type(value).__name__}")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _lone(value) else value


def _cell(name: str, row: int, column: str) -> str:
    return f"{name}: row {row}: column {column!r}"


def _lone(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _where(path: Path, start: int) -> str:
    """`path: line 7`, counted only now, for an error."""
    with _reading(path) as file:
        line, left = 1, start
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            line, left = line + block.count(b"\n"), left - len(block)
    return f"{path}: line {line}"
