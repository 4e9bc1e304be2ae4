"""What is to be imported, and all that the result depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atoll_runtime.data.catalogue import Plan
from atoll_runtime.data.importer.kinds import Source
from atoll_runtime.data.tokenizer import Tokenizer

SHARD_BYTES = 64_000_000
"""Of a shard of the training split: an object store likes tens of megabytes, and as much is done again after a kill."""
HELD_OUT = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be imported."""

    sources: Sequence[Source]
    tokenizer: Tokenizer
    format: str = ""
    field: str = ""
    config: str = ""
    """Of a Hugging Face data set; empty: it has one alone, or a default."""
    split: str = ""
    """Of such a data set."""
    held_out: float = HELD_OUT
    """Fraction of the documents that is kept for evaluation, by the hash of their text: equal ones stay together."""
    shard_bytes: int = SHARD_BYTES
    title: str = ""
    """What the text is, for people."""

    @property
    def plan(self) -> Plan:
        """All that the result depends on; the sources are looked into for it.

        Raises:
            DataError: one of them cannot be read.
        """
        return Plan(
            sources=len(self.sources),
            listing=_digest(f"{source.name}\0{source.size}" for source in self.sources),
            content=_digest(source.digest() for source in self.sources),
            format=self.format,
            field=self.field,
            config=self.config,
            split=self.split,
            tokenizer=self.tokenizer.kind,
            tokenizer_sha256=hashlib.sha256(self.tokenizer.file).hexdigest(),
            separator=self.tokenizer.separator,
            held_out=self.held_out,
            shard_bytes=self.shard_bytes,
        )


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
