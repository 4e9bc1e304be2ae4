"""Imports documents into shards. `meta.json` is written last, so a killed import leaves no data set."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject
from atoll_runtime.data.catalogue import (
    META,
    Catalogue,
    DataError,
    Shard,
    Split,
    SplitName,
    TokenizerFile,
    TokenType,
)
from atoll_runtime.data.importer.documents import Source
from atoll_runtime.data.tokenizer import Tokenizer
from atoll_runtime.data.writer import ShardWriter
from atoll_runtime.payloads import StoreError

SHARD_BYTES = 64_000_000
"""Tens of megabytes suit object stores."""
HELD_OUT = 0.05
BATCH_CHARACTERS = 1 << 20
"""Characters in one call of the tokenizer, which distributes documents over all cores."""
BATCH_DOCUMENTS = 1024


@dataclass(frozen=True, slots=True)
class Order:
    """What to import."""

    sources: Sequence[Source]
    tokenizer: Tokenizer
    held_out: float = HELD_OUT
    """Fraction of the documents kept for evaluation, chosen by the hash of their text."""
    shard_bytes: int = SHARD_BYTES
    title: str = ""
    """A description for people."""


@dataclass(slots=True)
class Standing:
    """Progress of the import."""

    documents: int = 0
    characters: int = 0
    tokens: int = 0
    fraction: float = 0.0
    """Fraction of all sources, by bytes."""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Estimated remaining seconds; None if not known."""
        return self.seconds * (1 - self.fraction) / self.fraction if self.fraction > 0 else None


def run_import(uri: str, order: Order, report: Callable[[Standing], None] | None = None) -> Catalogue:
    """Imports all documents as a data set.

    Args:
        report: called after each batch of documents.

    Raises:
        DataError: a source or a document is invalid, a split stays empty, or a data set exists already.
        StoreError: the bucket cannot be used.
    """
    bucket = Bucket(uri)
    try:
        return _run(bucket, order, report)
    except MissingObject as error:
        raise StoreError(f"{bucket.uri}: cannot be written: there is no such bucket or folder") from error


def _run(bucket: Bucket, order: Order, report: Callable[[Standing], None] | None) -> Catalogue:
    if not 0 <= order.held_out < 1:
        raise DataError(f"held-out {order.held_out:g}: a fraction of the documents, below 1, is wanted")
    if META in bucket.list():
        raise DataError(f"{bucket.address(META)}: a data set is here already; delete it, or import elsewhere")
    tokenizer = order.tokenizer
    dtype = cast(TokenType, np.min_scalar_type(tokenizer.vocabulary - 1).name)
    names: list[SplitName] = ["train", "heldout"] if order.held_out > 0 else ["train"]
    splits = {name: ShardWriter(bucket, name, np.dtype(dtype).itemsize, order.shard_bytes) for name in names}
    standing = Standing()
    for batch in _batches(_documents(order.sources)):
        for (text, _), tokens in zip(batch, tokenizer.encode([text for text, _ in batch]), strict=True):
            ended = np.append(tokens, tokenizer.separator).astype(np.dtype(dtype).newbyteorder("<"))
            splits[_split(text, order.held_out)].add(ended.tobytes())
            standing.tokens += ended.size
        standing.documents += len(batch)
        standing.characters += sum(len(text) for text, _ in batch)
        standing.fraction = batch[-1][1]
        if report:
            report(standing)
    shards = {name: writer.end() for name, writer in splits.items()}
    if not all(shards.values()):
        for found in shards.values():
            for shard in found:
                bucket.delete(shard.file)
        raise DataError(f"{bucket.uri}: {_empty(shards, order)}")
    catalogue = Catalogue(
        dtype=dtype,
        tokenizer=tokenizer.kind,
        tokenizer_file=_keep(bucket, tokenizer),
        vocabulary=tokenizer.vocabulary,
        separator=tokenizer.separator,
        source=order.title,
        splits={name: Split(shards=found) for name, found in shards.items()},
    )
    bucket.write(META, catalogue.model_dump_json(indent=1).encode())
    return catalogue


def _documents(sources: Sequence[Source]) -> Iterator[tuple[str, float]]:
    """Texts that are not empty, each with the fraction of all sources read so far."""
    total = sum(source.size for source in sources)
    before = 0
    for source in sources:
        for text, fraction in source.documents():
            if text:
                yield text, (before + fraction * source.size) / total
        before += source.size


def _batches(documents: Iterable[tuple[str, float]]) -> Iterator[list[tuple[str, float]]]:
    batch: list[tuple[str, float]] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document[0])
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _split(text: str, held_out: float) -> SplitName:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return "heldout" if number < held_out * 2**64 else "train"


def _keep(bucket: Bucket, tokenizer: Tokenizer) -> TokenizerFile | None:
    """Stores the tokenizer's file beside the shards."""
    if not tokenizer.file:
        return None
    name = "tokenizer.json" if tokenizer.kind == "tokenizers" else "tokenizer.model"
    bucket.write(name, tokenizer.file)
    return TokenizerFile(file=name, sha256=hashlib.sha256(tokenizer.file).hexdigest())


def _empty(shards: Mapping[SplitName, tuple[Shard, ...]], order: Order) -> str:
    """Why a split is empty, and what to do."""
    if not any(shards.values()):
        return "no document of the sources has any text"
    held_out = f"--held-out {order.held_out:g}"
    if not shards["train"]:
        return f"{held_out}: every document is held out; a smaller fraction, or 0, is wanted"
    whole = any(source.format == "text" for source in order.sources)
    lines = ", such as with --format lines, where each line is one" if whole else ""
    return (
        f"{held_out}: no document is held out, by the hash of its text; a larger fraction, 0 (no evaluation), or more "
        f"documents that differ are wanted{lines}"
    )
