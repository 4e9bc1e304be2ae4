"""Writes text as byte tokens. `meta.json` comes last, so a half-written data set does not count as one."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import google_crc32c

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.data.catalogue import META, Catalogue, DataError, Shard, Split, SplitName

SHARD_BYTES = 1_000_000
"""Below 1 MiB, from which aiohttp warns that one body blocks its event loop."""
SEPARATOR = b"\0"
"""Ends each document. Text does not contain it."""
HELD_OUT_OF_256 = 13
"""About 5 % of the documents, chosen by the hash of their name."""

Progress = Callable[[int, int], None]
"""Called with the number of documents written and the total."""


def write_stdlib(uri: str, progress: Progress | None = None) -> Catalogue:
    """Writes the text of this interpreter's standard library, without its tests, ordered by path."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(
        str(path.relative_to(root)) for path in root.rglob("*.py") if _belongs(path.relative_to(root).parts)
    )
    documents = [(name, root / name) for name in names]
    source = f"standard library of Python {sys.version.split()[0]}"
    return write_text(uri, documents, source=source, progress=progress)


def _belongs(parts: tuple[str, ...]) -> bool:
    return not {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(parts)


def write_text(
    uri: str,
    documents: Iterable[tuple[str, Path]],
    *,
    source: str = "",
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Catalogue:
    """Writes named text files, in the order given, as one data set.

    Raises:
        DataError: no document falls into one of the two splits.
        StoreError: the bucket cannot be written.
    """
    bucket = Bucket(uri)
    documents = list(documents)
    parts: dict[SplitName, list[tuple[str, Path]]] = {"train": [], "heldout": []}
    for name, path in documents:
        parts["heldout" if held_out(name) else "train"].append((name, path))
    done = 0
    splits: dict[SplitName, Split] = {}
    for split, members in parts.items():
        if not members:
            raise DataError(f"{bucket.uri}: split {split} is empty: {len(documents)} documents are too few")
        writer = ShardWriter(bucket, split, 1, shard_bytes)
        for _, path in members:
            writer.add(path.read_bytes().replace(SEPARATOR, b"") + SEPARATOR)
            done += 1
            if progress:
                progress(done, len(documents))
        splits[split] = Split(shards=writer.end())
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
