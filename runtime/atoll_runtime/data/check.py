"""Checks that a data set is complete and undamaged."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c
import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject
from atoll_runtime.data.catalogue import Catalogue, Shard, open_catalogue
from atoll_runtime.data.tokenizer import of_data

PIECE = 8 << 20
"""Bytes of one read."""


def check(uri: str, report: Callable[[int, int], None] | None = None) -> tuple[Catalogue, list[str]]:
    """Returns the catalogue and the faults found, each with the object's URI.

    Args:
        report: called with the bytes read and the total bytes.

    Raises:
        DataError: `meta.json` or the tokenizer's file is invalid.
        StoreError: the bucket does not answer.
    """
    bucket = Bucket(uri)
    catalogue = open_catalogue(bucket)
    of_data(bucket)
    wrong = []
    shards = [shard for split in catalogue.splits.values() for shard in split.shards]
    total = sum(shard.tokens for shard in shards) * catalogue.token_type.itemsize
    done = 0
    for shard in shards:
        fault = _fault(bucket, shard, catalogue)
        if fault:
            wrong.append(f"{bucket.address(shard.file)}: {fault}")
        done += shard.tokens * catalogue.token_type.itemsize
        if report:
            report(done, total)
    return catalogue, wrong


def _fault(bucket: Bucket, shard: Shard, catalogue: Catalogue) -> str:
    size = shard.tokens * catalogue.token_type.itemsize
    crc, largest = 0, 0
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        try:
            data = bucket.read(shard.file, start, stop)
        except MissingObject:
            return "is missing"
        if len(data) != stop - start:
            return f"ends after {start + len(data)} bytes, meta.json has {size}"
        crc = google_crc32c.extend(crc, data)
        largest = max(largest, int(np.frombuffer(data, catalogue.token_type).max()))
    if crc != shard.crc32c:
        return f"crc32c is {crc}, meta.json has {shard.crc32c}"
    if largest >= catalogue.vocabulary:
        return f"holds token {largest}, the vocabulary is {catalogue.vocabulary}"
    return ""
