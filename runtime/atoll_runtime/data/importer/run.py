"""Documents to shards. Killed at any point and started again, it writes the same bytes as if it had not been."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject
from atoll_runtime.data.catalogue import (
    META,
    Catalogue,
    DataError,
    Split,
    SplitName,
    TokenizerFile,
    TokenType,
    open_catalogue,
)
from atoll_runtime.data.importer.journal import Journal, Mark, Plan
from atoll_runtime.data.importer.sources import Source
from atoll_runtime.data.tokenizer import Tokenizer
from atoll_runtime.data.writer import write_shard

SHARD_BYTES = 64_000_000
"""Of a shard of the training split: an object store likes tens of megabytes, and as much is done again after a kill."""
LEAST_SHARD = 4096
"""Bytes of a held-out shard, which is as much smaller as the split, so that both splits' marks keep together."""
HELD_OUT = 0.05
BATCH_CHARACTERS = 1 << 20
"""Of the documents that are handed to the tokenizer at once, which spreads them over all cores."""
BATCH_DOCUMENTS = 1024


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be imported."""

    sources: Sequence[Source]
    tokenizer: Tokenizer
    format: str = ""
    field: str = ""
    held_out: float = HELD_OUT
    """Fraction of the documents that is kept for evaluation, by the hash of their text: equal ones stay together."""
    shard_bytes: int = SHARD_BYTES
    title: str = ""
    """What the text is, for people."""

    @property
    def plan(self) -> Plan:
        """All that the result depends on."""
        listing = "".join(f"{source.name}\0{source.size}\n" for source in self.sources)
        return Plan(
            sources=len(self.sources),
            listing=hashlib.sha256(listing.encode()).hexdigest(),
            format=self.format,
            field=self.field,
            tokenizer=self.tokenizer.kind,
            tokenizer_sha256=hashlib.sha256(self.tokenizer.file).hexdigest(),
            separator=self.tokenizer.separator,
            held_out=self.held_out,
            shard_bytes=self.shard_bytes,
        )


@dataclass(slots=True)
class Standing:
    """How far the import is."""

    documents: int = 0
    """Read by this process."""
    characters: int = 0
    """Of them."""
    tokens: int = 0
    """In all splits, those of a process before this one included."""
    fraction: float = 0.0
    """Of all sources, by their bytes."""
    started: float = field(default_factory=time.monotonic)
    began: float | None = None
    """The fraction at which this process began."""

    @property
    def seconds(self) -> float:
        """Since this process began."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds, if it goes on as fast; None as long as nobody can tell."""
        done = self.fraction - (self.began or 0.0)
        return self.seconds * (1 - self.fraction) / done if done > 0 else None


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it stands."""

    at: tuple[int, int]
    text: str
    fraction: float
    """Of all sources, up to its end."""


def run_import(uri: str, order: Order, report: Callable[[Standing], None] | None = None) -> Catalogue:
    """Imports, or goes on with an import that was cut short; one that was done before is returned.

    Args:
        report: called after each batch of documents.

    Raises:
        DataError: a source or a document cannot be used, a split stays empty, or another data set is in the way.
        StoreError: the bucket cannot be used.
    """
    bucket, plan = Bucket(uri), order.plan
    journal = Journal(bucket, plan)
    marks = journal.resume()
    if not marks:
        done = _done(bucket, plan)
        if done is not None:
            return done
        _check(order)
        journal.record({"train": Mark()})
    names = [name for name in get_args(SplitName) if name == "train" or order.held_out > 0]
    tracks = {name: _Track(bucket, name, order, marks.get(name, Mark())) for name in names}
    standing = Standing(tokens=sum(track.tokens for track in tracks.values()))
    begin = min(track.mark.at for track in tracks.values())
    for batch in _batches(_documents(order.sources, begin)):
        chosen = [(document, tracks[_split(document.text, order.held_out)]) for document in batch]
        wanted = [(document, track) for document, track in chosen if document.at >= track.mark.at]
        texts = order.tokenizer.encode([document.text for document, _ in wanted])
        for (document, track), tokens in zip(wanted, texts, strict=True):
            if track.add(document.at, np.append(tokens, order.tokenizer.separator)):
                journal.record({name: each.mark for name, each in tracks.items()})
        standing.documents += len(batch)
        standing.characters += sum(len(document.text) for document in batch)
        standing.tokens = sum(track.tokens for track in tracks.values())
        standing.began = batch[0].fraction if standing.began is None else standing.began
        standing.fraction = batch[-1].fraction
        if report:
            report(standing)
    for name, track in tracks.items():
        track.end()
        if not track.shards:
            raise DataError(
                f"{bucket.uri}: split {name} is empty: {standing.documents} documents are too few, or there is no text"
            )
    catalogue = Catalogue(
        dtype=_width(order.tokenizer),
        tokenizer=order.tokenizer.kind,
        tokenizer_file=_keep(bucket, order.tokenizer),
        vocabulary=order.tokenizer.vocabulary,
        separator=order.tokenizer.separator,
        source=order.title,
        plan=plan.digest,
        splits={name: Split(shards=tuple(track.shards)) for name, track in tracks.items()},
    )
    bucket.write(META, catalogue.model_dump_json(indent=1).encode())
    journal.end()
    return catalogue


class _Track:
    """One split: tokens gathered until they fill a shard."""

    def __init__(self, bucket: Bucket, name: SplitName, order: Order, mark: Mark) -> None:
        self._bucket = bucket
        self._name = name
        self._type = np.dtype(_width(order.tokenizer)).newbyteorder("<")
        limit = order.shard_bytes
        if name == "heldout":
            limit = max(LEAST_SHARD, int(limit * order.held_out / (1 - order.held_out)))
        self._limit = -(-limit // self._type.itemsize)
        self._pending: list[np.ndarray] = []
        self._gathered = 0
        self.mark = mark
        self.shards = list(mark.shards)
        self._written = sum(shard.tokens for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Written and gathered."""
        return self._written + self._gathered

    def add(self, at: tuple[int, int], tokens: np.ndarray) -> bool:
        """Takes a document's tokens; whether the mark has moved, for at least one shard was written."""
        taken = self.mark.taken if at == self.mark.at else 0
        left = tokens[taken:].astype(self._type)
        moved = False
        while len(left):
            space = self._limit - self._gathered
            self._pending.append(left[:space])
            self._gathered += len(left[:space])
            left = left[space:]
            if self._gathered == self._limit:
                self.end()
                source, place = at
                stays = len(tokens) - len(left)
                self.mark = Mark(source=source, place=place, taken=stays, shards=tuple(self.shards))
                moved = True
        return moved

    def end(self) -> None:
        """Writes what is gathered."""
        if self._gathered:
            data = np.concatenate(self._pending).tobytes()
            self.shards.append(
                write_shard(self._bucket, self._name, len(self.shards), data, self._type.itemsize)
            )
            self._written += self._gathered
            self._pending, self._gathered = [], 0


def _documents(sources: Sequence[Source], begin: tuple[int, int]) -> Iterator[Document]:
    """From `begin` on, a (source, place)."""
    total = sum(source.size for source in sources)
    first, place = begin
    before = sum(source.size for source in sources[:first])
    for number in range(first, len(sources)):
        source = sources[number]
        for text, after, fraction in source.documents(place):
            if text:
                done = (before + fraction * source.size) / total if total else 0.0
                yield Document((number, place), text, done)
            place = after
        place = 0
        before += source.size


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _split(text: str, held_out: float) -> SplitName:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return "heldout" if number < held_out * 2**64 else "train"


def _width(tokenizer: Tokenizer) -> TokenType:
    """The narrowest."""
    return (
        "uint8"
        if tokenizer.vocabulary <= 1 << 8
        else "uint16"
        if tokenizer.vocabulary <= 1 << 16
        else "uint32"
    )


def _keep(bucket: Bucket, tokenizer: Tokenizer) -> TokenizerFile | None:
    """Stores the tokenizer's file beside the shards."""
    if not tokenizer.file:
        return None
    name = "tokenizer.json" if tokenizer.kind == "tokenizers" else "tokenizer.model"
    bucket.write(name, tokenizer.file)
    return TokenizerFile(file=name, sha256=hashlib.sha256(tokenizer.file).hexdigest())


def _done(bucket: Bucket, plan: Plan) -> Catalogue | None:
    """The data set that this very import made before."""
    try:
        bucket.read(META)
    except MissingObject:
        return None
    found = open_catalogue(bucket)
    if found.plan != plan.digest:
        raise DataError(f"{bucket.address(META)}: another data set is here; delete it, or import elsewhere")
    return found


def _check(order: Order) -> None:
    if not 0 <= order.held_out < 1:
        raise DataError(f"held-out {order.held_out:g}: a fraction of the documents, below 1, is wanted")
    if not order.sources:
        raise DataError("sources: there is none")
