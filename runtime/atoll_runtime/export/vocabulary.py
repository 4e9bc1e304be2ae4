"""The tokenizer of the data set that a model was trained on, as files beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_runtime.checkpoint import Bucket
from atoll_runtime.data import open_catalogue
from atoll_runtime.data.tokenizer import HuggingFace, of_data


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a data set says of its tokens."""

    size: int
    """Every token is less than this."""
    separator: int
    """Ends a document."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By name; none for bytes, which need none."""


def read_vocabulary(uri: str) -> Vocabulary:
    """Reads a data set's tokenizer.

    Raises:
        DataError: no data set is there, or its tokenizer cannot be read.
        StoreError: the bucket does not answer.
    """
    bucket = Bucket(uri)
    found = of_data(bucket, open_catalogue(bucket))
    files: dict[str, bytes] = {}
    if isinstance(found, HuggingFace):
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": found.name(found.separator),
            "model_input_names": ["input_ids", "attention_mask"],  # neither model takes token types
        }
        files = {"tokenizer.json": found.file, "tokenizer_config.json": json.dumps(config, indent=2).encode()}
    elif found.kind == "sentencepiece":
        files = {"tokenizer.model": found.file}
    return Vocabulary(found.vocabulary, found.separator, files)
