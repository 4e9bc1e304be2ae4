"""`meta.json` of a data set: its token type, its splits, and their shards."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject

META = "meta.json"


class DataError(Exception):
    """A data set that cannot be used, and will not be by trying again; names the URI and the field."""


class Shard(BaseModel):
    """One object of raw little-endian tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Annotated[str, Field(min_length=1, max_length=1024)]
    tokens: Annotated[int, Field(ge=1)]
    crc32c: int
    """Of the object's bytes."""


class Split(BaseModel):
    """Shards in order; example i of length T is tokens [i·T, i·T + T] of their concatenation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)


class Catalogue(BaseModel):
    """`meta.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    dtype: Literal["uint8", "uint16", "uint32"]
    tokenizer: Literal["bytes"]
    source: str = ""
    """What the text is, for people."""
    splits: dict[Literal["train", "heldout"], Split]

    @property
    def token_type(self) -> np.dtype[np.generic]:
        """Little-endian, as on disk."""
        return np.dtype(self.dtype).newbyteorder("<")


def open_catalogue(bucket: Bucket) -> Catalogue:
    """Reads `meta.json`.

    Raises:
        DataError: there is none, or a field of it is wrong.
        StoreError: the bucket does not answer.
    """
    try:
        text = bucket.read(META)
    except MissingObject as error:
        raise DataError(f"{bucket.uri}: no data set here: {META} is missing") from error
    try:
        return Catalogue.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "JSON"
        raise DataError(f"{bucket.address(META)}: {field}: {first['msg']}") from error
