"""Reads example i of a split, by range reads through a bounded cache of blocks."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject
from atoll_runtime.data.catalogue import DataError, open_catalogue
from atoll_runtime.payloads import StoreError

BLOCK = 64 << 10
"""Bytes of one range read."""
CACHED_BLOCKS = 1024
"""Blocks in the cache: at most 64 MiB."""
READ_SECONDS = 15.0
"""Time-out of one block, including the client's own retries. It allows for 35 kbit/s."""
ATTEMPTS = 6
FIRST_WAIT = 0.2
"""Seconds before the second attempt. Later waits double, with jitter; together at most 9.3 s."""


class Reader:
    """Examples of `length` + 1 tokens: the inputs, and the targets one to the right. Safe for several threads."""

    readers = 16
    """Useful number of threads. Measured on two cores: 358 examples a second at 20 ms of latency, 282 at 50 ms.
    Files may be on a network volume. On a fast disk 16 threads are as fast as one."""

    def __init__(self, uri: str, split: str, length: int, *, cached_blocks: int = CACHED_BLOCKS) -> None:
        """Raises `DataError` if the data set cannot be used, `StoreError` if the bucket does not answer."""
        self._bucket = Bucket(uri, READ_SECONDS)
        self.catalogue = open_catalogue(self._bucket)
        """The content of `meta.json`."""
        found = next((content for name, content in self.catalogue.splits.items() if name == split), None)
        if found is None:
            raise DataError(
                f"{uri}: splits: {split!r} is missing; there is {', '.join(self.catalogue.splits)}"
            )
        self._type = self.catalogue.token_type
        self._files = [shard.file for shard in found.shards]
        self._starts: list[int] = [0, *accumulate(shard.tokens for shard in found.shards)]
        self._length = length
        self._block = lru_cache(cached_blocks)(self._read)
        if self.examples < 1:
            raise DataError(f"{uri}: splits.{split}: {found.tokens} tokens hold no example of {length} + 1")

    @property
    def examples(self) -> int:
        """Number of examples. Tokens at the end that do not fill one are not used."""
        return (self._starts[-1] - 1) // self._length

    def example(self, index: int) -> np.ndarray:
        """Tokens int32 [length + 1] of example `index`.

        Raises:
            DataError: a shard is missing or shorter than the catalogue says.
            StoreError: the bucket did not answer after all attempts.
        """
        start = index * self._length
        stop = start + self._length + 1
        parts: list[np.ndarray] = []
        while start < stop:
            shard = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[shard + 1])
            offset = self._starts[shard]
            parts.append(self._tokens(shard, start - offset, end - offset))
            start = end
        return np.concatenate(parts).astype(np.int32)

    def _tokens(self, shard: int, start: int, stop: int) -> np.ndarray:
        width = self._type.itemsize
        first, last = start * width // BLOCK, (stop * width - 1) // BLOCK
        raw = b"".join(self._block(shard, block) for block in range(first, last + 1))
        skip = start * width - first * BLOCK
        wanted = raw[skip : skip + (stop - start) * width]
        if len(wanted) < (stop - start) * width:
            where = self._bucket.address(self._files[shard])
            raise DataError(f"{where}: tokens: ends before token {stop}, which meta.json promises")
        return np.frombuffer(wanted, self._type)

    def _read(self, shard: int, block: int) -> bytes:
        size = (self._starts[shard + 1] - self._starts[shard]) * self._type.itemsize
        start, stop = block * BLOCK, min((block + 1) * BLOCK, size)
        for attempt in range(ATTEMPTS):
            try:
                return self._bucket.read(self._files[shard], start, stop)
            except MissingObject as error:
                raise DataError(f"{error}, though meta.json names it") from error
            except StoreError:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("the last attempt returns or raises")
