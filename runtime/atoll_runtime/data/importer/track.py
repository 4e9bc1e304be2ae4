"""One split as it is being written."""

from __future__ import annotations

import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.data.catalogue import SplitName, TokenType
from atoll_runtime.data.importer.journal import Mark
from atoll_runtime.data.tokenizer import Tokenizer
from atoll_runtime.data.writer import write_shard


class Track:
    """One split: tokens gathered until they fill a shard."""

    def __init__(self, bucket: Bucket, name: SplitName, tokenizer: Tokenizer, limit: int, mark: Mark) -> None:
        """`limit`: bytes of a shard."""
        self._bucket = bucket
        self._name = name
        self._type = np.dtype(width_of(tokenizer)).newbyteorder("<")
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

    def remove(self) -> None:
        """Deletes the shards that were written."""
        for shard in self.shards:
            self._bucket.delete(shard.file)

    def end(self) -> None:
        """Writes what is gathered."""
        if self._gathered:
            data = np.concatenate(self._pending).tobytes()
            self.shards.append(
                write_shard(self._bucket, self._name, len(self.shards), data, self._type.itemsize)
            )
            self._written += self._gathered
            self._pending, self._gathered = [], 0


def width_of(tokenizer: Tokenizer) -> TokenType:
    """The narrowest."""
    return (
        "uint8"
        if tokenizer.vocabulary <= 1 << 8
        else "uint16"
        if tokenizer.vocabulary <= 1 << 16
        else "uint32"
    )
