"""Text of files and cells, decoded; what goes wrong with it names the file and the place."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from atoll_runtime.data.catalogue import DataError


def words(error: BaseException) -> str:
    """What a library says, in one line."""
    return " ".join(str(error).split())


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked; what goes wrong with it names it."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error}") from error


def decoded(raw: bytes, path: Path, start: int) -> str:
    """Without the byte order mark that some editors put before a file's first character."""
    try:
        return raw.removeprefix(BOM_UTF8 if start == 0 else b"").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where(path, start)}: not UTF-8: {error}") from error


def string(value: object, named: Callable[[], str]) -> str:
    """Text that has a UTF-8 form: a lone surrogate, which JSON can express, becomes U+FFFD; null is an empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{named()}: a text is wanted, not {type(value).__name__}")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _lone(value) else value


def cell(name: str, row: int, column: str) -> str:
    """Where a value of a table stands."""
    return f"{name}: row {row}: column {column!r}"


def _lone(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def where(path: Path, start: int) -> str:
    """`path: line 7`, counted only now, for an error."""
    with reading(path) as file:
        line, left = 1, start
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            line, left = line + block.count(b"\n"), left - len(block)
    return f"{path}: line {line}"
