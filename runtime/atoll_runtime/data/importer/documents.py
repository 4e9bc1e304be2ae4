"""Documents of one file: text, lines, JSON lines or parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from atoll_runtime.data.catalogue import DataError

Format = Literal["text", "lines", "jsonl", "parquet"]
ROWS = 256
"""Rows of a parquet file in one batch."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of documents."""

    path: Path
    size: int
    """Bytes."""
    format: Format
    field: str
    """The text's field in a JSON object, or its column in a parquet file."""

    def documents(self) -> Iterator[tuple[str, float]]:
        """Yields each text with the fraction of the file read so far; 0 if not known. Raises `DataError` if the file
        cannot be read or a document is invalid."""
        if self.format == "parquet":
            return self._rows()
        return self._whole() if self.format == "text" else self._lines()

    def _whole(self) -> Iterator[tuple[str, float]]:
        with _reading(self.path) as file:
            yield self._decoded(file.read(), 1), 1.0

    def _lines(self) -> Iterator[tuple[str, float]]:
        read = 0
        with _reading(self.path) as file:
            for number, line in enumerate(file, 1):
                read += len(line)
                if line.strip():
                    text = self._decoded(line, number)
                    found = text.rstrip("\r\n") if self.format == "lines" else self._value(text, number)
                    yield found, 0.0 if self.path.suffix == ".gz" else read / self.size

    def _decoded(self, raw: bytes, line: int) -> str:
        """Decodes UTF-8 and removes a byte order mark at the start of the file."""
        try:
            return raw.removeprefix(BOM_UTF8 if line == 1 else b"").decode()
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise DataError(f"{self.path}: line {line}: not UTF-8: {error}") from error

    def _value(self, text: str, line: int) -> str:
        where = f"{self.path}: line {line}"
        try:  # numbers are not used, and Python refuses those of thousands of digits
            value = json.loads(text, parse_int=lambda _: 0)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from error
        except RecursionError as error:
            raise DataError(f"{where}: its brackets are nested too deeply") from error
        if not isinstance(value, dict) or self.field not in value:
            there = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{where}: field {self.field!r} is missing; there is {there}")
        return _text(value[self.field], f"{where}: field {self.field!r}")

    def _rows(self) -> Iterator[tuple[str, float]]:
        from pyarrow import ArrowException, parquet  # an optional dependency, only for these files

        try:
            with parquet.ParquetFile(self.path) as file:
                if self.field not in file.schema_arrow.names:
                    there = ", ".join(map(repr, file.schema_arrow.names))
                    raise DataError(f"{self.path}: column {self.field!r} is missing; there is {there}")
                row = 0
                for batch in file.iter_batches(ROWS, columns=[self.field]):
                    for cell in batch.column(0):
                        row += 1
                        where = f"{self.path}: row {row}: column {self.field!r}"
                        try:
                            value = cell.as_py()
                        except UnicodeDecodeError as error:
                            raise DataError(f"{where}: not UTF-8: {error}") from error
                        yield _text(value, where), row / file.metadata.num_rows
        except (ArrowException, OSError) as error:
            raise DataError(f"{self.path}: {' '.join(str(error).split())}") from error


@contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    """Opens the file and decompresses it; errors name it."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error}") from error


def _text(value: Any, where: str) -> str:
    """Text that UTF-8 can encode: lone surrogates in JSON become U+FFFD; null is an empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: a text is wanted, not {type(value).__name__}")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
