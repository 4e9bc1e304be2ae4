"""`meta.json` of a data set: its tokens, its splits, and their shards."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from atoll_runtime.checkpoint.bucket import Bucket, MissingObject
from atoll_runtime.checkpoint.manifest import Record
from atoll_runtime.contract import problems

META = "meta.json"

SplitName = Literal["train", "heldout"]
TokenType = Literal["uint8", "uint16", "uint32"]
TokenizerKind = Literal["bytes", "tokenizers", "sentencepiece"]


class DataError(Exception):
    """A data set that cannot be used; a retry does not help. The message names the URI and the field."""


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("a path below the data set's URI is wanted, relative and without ..")
    return name


FileName = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_inside)]
"""Name of an object inside the data set. Names of objects outside it are invalid."""


class Shard(Record):
    """One object of raw little-endian tokens."""

    file: FileName
    tokens: Annotated[int, Field(ge=1)]
    crc32c: int
    """Checksum of the object's bytes."""


class Split(Record):
    """Shards in order. Example i of length T is tokens i·T to i·T + T, inclusive, of their concatenation."""

    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)


class TokenizerFile(Record):
    """The tokenizer's file, stored beside the shards so that the tokens can be decoded."""

    file: FileName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Catalogue(Record):
    """`meta.json`. The defaults are for byte tokens."""

    format: Literal[1] = 1
    dtype: TokenType
    tokenizer: TokenizerKind
    tokenizer_file: TokenizerFile | None = None
    """None for byte tokens, which need no file."""
    vocabulary: Annotated[int, Field(ge=2, le=2**31)] = 256
    """Every token is less than this."""
    separator: Annotated[int, Field(ge=0)] = 0
    """The token that ends each document. It occurs nowhere else."""
    source: str = ""
    """A description of the text for people."""
    splits: dict[SplitName, Split]

    @property
    def token_type(self) -> np.dtype[np.generic]:
        """Little-endian, as on disk."""
        return np.dtype(self.dtype).newbyteorder("<")


def open_catalogue(bucket: Bucket) -> Catalogue:
    """Reads `meta.json`.

    Raises:
        DataError: there is none, or one of its fields is wrong.
        StoreError: the bucket does not answer.
    """
    try:
        return Catalogue.model_validate_json(bucket.read(META))
    except MissingObject as error:
        raise DataError(f"{bucket.uri}: no data set here: {META} is missing") from error
    except ValidationError as error:
        raise DataError(f"{bucket.address(META)}: {problems(error)}") from error
