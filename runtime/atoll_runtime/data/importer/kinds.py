"""The kinds of sources of documents. A place in a source is a number from which its reading can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from atoll_runtime.data.catalogue import DataError
from atoll_runtime.data.extras import extra
from atoll_runtime.data.importer.text import cell, decoded, reading, string, where, words

ROWS = 256
"""Rows of a parquet file or a dataset that are decoded at once."""
END = 1 << 20
"""Bytes at either end of a file that are held against those of the import before."""


class Source(Protocol):
    """Documents in an order that does not change."""

    @property
    def name(self) -> str:
        """The same wherever the source is mounted."""

    @property
    def size(self) -> int:
        """Bytes, for the time left; 0: unknown."""

    def digest(self) -> str:
        """Tells changed text from the text of an import before, as far as can be told without reading all of it.

        Raises:
            DataError: the source cannot be read.
        """

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """Text, the place after it, and which fraction of the source lies before that, from `place` on.

        Raises:
            DataError: the source cannot be read, or a document is not what it must be.
        """


@dataclass(frozen=True, slots=True)
class File:
    """What every file has."""

    path: Path
    name: str
    size: int

    def digest(self) -> str:
        """Of the first and the last MiB, as they are stored."""
        try:
            with self.path.open("rb") as file:
                digest = hashlib.sha256(file.read(END))
                file.seek(max(END, self.size - END))
                digest.update(file.read(END))
        except OSError as error:
            raise DataError(f"{self.path}: {error}") from error
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Text(File):
    """A file that is one document."""

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are 0 and 1."""
        if place == 0:
            with reading(self.path) as file:
                yield decoded(file.read(), self.path, 0), 1, 1.0


@dataclass(frozen=True, slots=True)
class Lines(File):
    """A document in each line that is not blank, plain or as a field of a JSON object."""

    field: str | None = None
    """Of the object; None: the line itself."""

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are offsets in bytes, of what was unpacked where the file is packed."""
        with reading(self.path) as file:
            file.seek(place)
            known = self.path.suffix != ".gz" and self.size > 0
            for line in file:
                start, place = place, place + len(line)
                if line.strip():
                    text = decoded(line, self.path, start)
                    found = text.rstrip("\r\n") if self.field is None else self._value(text, start)
                    yield found, place, place / self.size if known else 0.0

    def _value(self, text: str, start: int) -> str:
        try:  # no number is used, and Python would refuse one of thousands of digits
            value = json.loads(text, parse_int=lambda _: 0)
        except ValueError as error:
            raise DataError(f"{where(self.path, start)}: not JSON: {error}") from error
        except RecursionError as error:
            raise DataError(f"{where(self.path, start)}: its brackets are nested too deeply") from error
        if not isinstance(value, dict) or self.field not in value:
            there = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{where(self.path, start)}: field {self.field!r} is missing; there is {there}")
        return string(value[self.field], lambda: f"{where(self.path, start)}: field {self.field!r}")


@dataclass(frozen=True, slots=True)
class Parquet(File):
    """A document in each row of one column."""

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
            raise DataError(f"{self.path}: {words(error)}") from error

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
                            string(value, partial(cell, str(self.path), row, self.field)),
                            row,
                            row / total,
                        )


@dataclass(frozen=True, slots=True)
class ArrayRecord(File):
    """A document in each record, as UTF-8."""

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
            raise DataError(f"{self.path}: {words(error)}") from error


@dataclass(frozen=True, slots=True)
class Dataset:
    """A column of a Hugging Face data set, which the package `datasets` gets."""

    rows: Any
    """A `datasets.Dataset`."""
    name: str
    size: int
    field: str
    local: bool
    """A folder's: its fingerprint tells when and where files were written, and not always that."""

    def digest(self) -> str:
        """The fingerprint, which holds the hub's revision; of a folder, whose rows lie here, all texts."""
        if not self.local:
            return str(self.rows._fingerprint)
        digest = hashlib.sha256()
        for text, _, _ in self.documents(0):
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()

    def documents(self, place: int) -> Iterator[tuple[str, int, float]]:
        """See `Source`; places are rows."""
        total = len(self.rows)
        while place < total:
            for value in self.rows[place : place + ROWS][self.field]:
                place += 1
                yield (
                    string(value, partial(cell, self.name, place, self.field)),
                    place,
                    place / total,
                )
