"""Writes text as byte tokens. `meta.json` comes last, so a half-written data set does not count as one."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

import google_crc32c

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.data.catalogue import META, Catalogue, DataError, Shard, Split, SplitName

SHARD_BYTES = 1_000_000
"""Bytes of a shard. Small, because these texts are."""
SEPARATOR = b"\0"
"""Ends each document. Text does not contain it."""
FOREIGN = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders of the standard library whose text is left out."""
HELD_OUT_OF_256 = 13
"""About 5 % of the documents, chosen by the hash of their name."""


def write_stdlib(uri: str, progress: Callable[[int, int], None] | None = None) -> Catalogue:
    """Writes the text of this interpreter's standard library, without its tests, ordered by path.

    Args:
        progress: called with the number of documents written and the total.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path.relative_to(root) for path in root.rglob("*.py"))
    names = sorted(str(path) for path in paths if not FOREIGN & set(path.parts))

    def documents() -> Iterator[tuple[str, bytes]]:
        for done, name in enumerate(names, 1):
            yield name, (root / name).read_bytes()
            if progress:
                progress(done, len(names))

    return write_text(uri, documents(), source=f"standard library of Python {sys.version.split()[0]}")


def write_text(
    uri: str, documents: Iterable[tuple[str, bytes]], *, source: str = "", shard_bytes: int = SHARD_BYTES
) -> Catalogue:
    """Writes named texts, in the order given, as one data set.

    Raises:
        DataError: no document falls into one of the two splits.
        StoreError: the bucket cannot be written.
    """
    bucket = Bucket(uri)
    names: tuple[SplitName, ...] = get_args(SplitName)
    writers = {split: ShardWriter(bucket, split, 1, shard_bytes) for split in names}
    for name, text in documents:
        writers["heldout" if held_out(name) else "train"].add(text.replace(SEPARATOR, b"") + SEPARATOR)
    splits = {}
    for split, writer in writers.items():
        if not (found := writer.end()):
            raise DataError(f"{bucket.uri}: split {split} is empty: there are too few documents")
        splits[split] = Split(shards=found)
    catalogue = Catalogue(dtype="uint8", tokenizer="bytes", source=source, splits=splits)
    bucket.write(META, catalogue.model_dump_json(indent=1).encode())
    return catalogue


def held_out(name: str) -> bool:
    """Whether a document is kept for evaluation. It depends only on the name."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_OF_256


class ShardWriter:
    """Writes the tokens of one split as shards."""

    def __init__(self, bucket: Bucket, split: SplitName, width: int, shard_bytes: int) -> None:
        """`width`: bytes of a token."""
        self._bucket, self._split, self._width = bucket, split, width
        self._limit = max(1, shard_bytes // width) * width
        self._pending = bytearray()
        self._shards: list[Shard] = []

    def add(self, tokens: bytes) -> None:
        """Adds tokens, and writes full shards. Raises `StoreError`."""
        self._pending += tokens
        while len(self._pending) >= self._limit:
            self._write(self._limit)

    def end(self) -> tuple[Shard, ...]:
        """Writes the rest, and returns all shards. Raises `StoreError`."""
        if self._pending:
            self._write(len(self._pending))
        return tuple(self._shards)

    def _write(self, size: int) -> None:
        data = bytes(self._pending[:size])
        file = f"{self._split}/{len(self._shards):05d}.tokens"
        self._bucket.write(file, data)
        self._shards.append(Shard(file=file, tokens=size // self._width, crc32c=google_crc32c.value(data)))
        del self._pending[:size]
