"""Documents to shards. Killed at any point and started again, it writes the same bytes as if it had not been."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject, StoreError
from atoll_runtime.data.catalogue import (
    META,
    Catalogue,
    DataError,
    Plan,
    Split,
    SplitName,
    TokenizerFile,
    open_catalogue,
)
from atoll_runtime.data.importer.differences import differences
from atoll_runtime.data.importer.journal import Journal, Mark
from atoll_runtime.data.importer.kinds import Source, Text
from atoll_runtime.data.importer.order import Order
from atoll_runtime.data.importer.track import Track, width_of
from atoll_runtime.data.tokenizer import Tokenizer

LEAST_SHARD = 4096
"""Bytes."""
BATCH_CHARACTERS = 1 << 20
"""Of the documents that are handed to the tokenizer at once, which spreads them over all cores."""
BATCH_DOCUMENTS = 1024


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


def run_import(
    uri: str,
    order: Order,
    report: Callable[[Standing], None] | None = None,
    found: Callable[[], None] | None = None,
) -> Catalogue:
    """Imports, or goes on with an import that was cut short; one that was done before is returned.

    Args:
        report: called after each batch of documents.
        found: called where it was done before.

    Raises:
        DataError: a source or a document cannot be used, a split stays empty, or another data set is in the way.
        StoreError: the bucket cannot be used.
    """
    bucket, plan = Bucket(uri), order.plan
    journal = Journal(bucket, plan)
    marks = journal.resume()
    if not marks:
        done = _done(bucket, plan, under_way=journal.stands)
        if done is not None:
            _end(bucket, journal)  # an import may have been killed when all but this was done
            if found:
                found()
            return done
        _check(order)
        _begin(bucket, journal)
    names = [name for name in get_args(SplitName) if name == "train" or order.held_out > 0]
    tracks = {
        name: Track(bucket, name, order.tokenizer, _limit(name, order), marks.get(name, Mark()))
        for name in names
    }
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
    for track in tracks.values():
        track.end()
    if not all(track.shards for track in tracks.values()):
        for track in tracks.values():
            track.remove()
        _end(bucket, journal)
        raise DataError(f"{bucket.uri}: {_empty(tracks, order)}")
    catalogue = Catalogue(
        dtype=width_of(order.tokenizer),
        tokenizer=order.tokenizer.kind,
        tokenizer_file=_keep(bucket, order.tokenizer),
        vocabulary=order.tokenizer.vocabulary,
        separator=order.tokenizer.separator,
        source=order.title,
        plan=plan,
        splits={name: Split(shards=tuple(track.shards)) for name, track in tracks.items()},
    )
    bucket.write(META, catalogue.model_dump_json(indent=1).encode())
    _end(bucket, journal)
    return catalogue


def _limit(name: SplitName, order: Order) -> int:
    """Bytes of a shard; a held-out one is as much smaller as its split, so that both splits' marks keep together."""
    if name == "train":
        return order.shard_bytes
    return max(LEAST_SHARD, int(order.shard_bytes * order.held_out / (1 - order.held_out)))


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


def _keep(bucket: Bucket, tokenizer: Tokenizer) -> TokenizerFile | None:
    """Stores the tokenizer's file beside the shards."""
    if not tokenizer.file:
        return None
    name = "tokenizer.json" if tokenizer.kind == "tokenizers" else "tokenizer.model"
    bucket.write(name, tokenizer.file)
    return TokenizerFile(file=name, sha256=hashlib.sha256(tokenizer.file).hexdigest())


def _done(bucket: Bucket, plan: Plan, *, under_way: bool) -> Catalogue | None:
    """The data set that this very import made before; while one is under way, a torn `meta.json` is none."""
    try:
        bucket.read(META)
    except MissingObject:
        return None
    try:
        found = open_catalogue(bucket)
    except DataError:
        if under_way:
            return None
        raise
    if found.plan == plan:
        return found
    how = "" if found.plan is None else f", imported with {next(differences(found.plan, plan))}"
    raise DataError(f"{bucket.address(META)}: another data set is here{how}; delete it, or import elsewhere")


def _begin(bucket: Bucket, journal: Journal) -> None:
    try:
        journal.record({"train": Mark()})
    except MissingObject as error:
        raise StoreError(f"{bucket.uri}: cannot be written: there is no such bucket or folder") from error


def _end(bucket: Bucket, journal: Journal) -> None:
    """Leaves the data set alone in its place."""
    journal.end()
    for folder in ("", *get_args(SplitName)):
        bucket.tidy(folder)


def _empty(tracks: Mapping[SplitName, Track], order: Order) -> str:
    """Why a split has nothing in it, and what would be right."""
    if not any(track.shards for track in tracks.values()):
        return "no document of the sources has any text"
    held_out = f"--held-out {order.held_out:g}"
    if not tracks["train"].shards:
        return f"{held_out}: every document is held out; a smaller fraction, or 0, is wanted"
    whole = any(isinstance(source, Text) for source in order.sources)
    lines = ", such as with --format lines, where each line is one" if whole else ""
    return (
        f"{held_out}: no document is held out, by the hash of its text; a larger fraction, 0 (no evaluation), or more "
        f"documents that differ are wanted{lines}"
    )


def _check(order: Order) -> None:
    if not 0 <= order.held_out < 1:
        raise DataError(f"held-out {order.held_out:g}: a fraction of the documents, below 1, is wanted")
    if not order.sources:
        raise DataError("sources: there is none")
