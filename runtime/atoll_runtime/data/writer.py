"""Writes text as byte tokens: shards first, `meta.json` last, so that a half-written data set is none."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import google_crc32c

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.data.catalogue import META, Catalogue, DataError, Shard, Split, SplitName

SHARD_BYTES = 1_000_000
"""Below the 1 MiB from which aiohttp warns that one body holds up its event loop."""
SEPARATOR = b"\0"
"""Stands after each document; text does not hold it."""
HELD_OUT_OF_256 = 13
"""About 5 % of the documents, chosen by the hash of their name."""

Progress = Callable[[int, int], None]
"""Called with documents done and documents in all."""


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

    def texts(split: SplitName) -> Iterator[bytes]:
        nonlocal done
        for _, path in parts[split]:
            yield path.read_bytes().replace(SEPARATOR, b"") + SEPARATOR
            done += 1
            if progress:
                progress(done, len(documents))

    splits: dict[SplitName, Split] = {}
    for split, members in parts.items():
        if not members:
            raise DataError(f"{bucket.uri}: split {split} is empty: {len(documents)} documents are too few")
        shards = tuple(_write_shards(bucket, split, texts(split), shard_bytes))
        splits[split] = Split(shards=shards)
    catalogue = Catalogue(dtype="uint8", tokenizer="bytes", source=source, splits=splits)
    bucket.write(META, catalogue.model_dump_json(indent=1).encode())
    return catalogue


def held_out(name: str) -> bool:
    """Whether a document is kept for evaluation; depends on its name alone."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_OF_256


def write_shard(bucket: Bucket, split: SplitName, number: int, data: bytes, width: int) -> Shard:
    """Writes one shard of tokens of `width` bytes; raises `StoreError`."""
    file = f"{split}/{number:05d}.tokens"
    bucket.write(file, data)
    return Shard(file=file, tokens=len(data) // width, crc32c=google_crc32c.value(data))


def _write_shards(bucket: Bucket, split: SplitName, texts: Iterator[bytes], limit: int) -> Iterator[Shard]:
    pending = bytearray()
    count = 0
    for text in texts:
        pending += text
        while len(pending) >= limit:
            yield write_shard(bucket, split, count, bytes(pending[:limit]), 1)
            del pending[:limit]
            count += 1
    if pending:
        yield write_shard(bucket, split, count, bytes(pending), 1)
