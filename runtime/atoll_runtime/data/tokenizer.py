"""Text to tokens and back, by bytes, a `tokenizer.json` of Hugging Face's tokenizers, or a SentencePiece model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.data.catalogue import DataError, TokenizerKind, open_catalogue

SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""Names of separators to try when none is given."""


class Bytes:
    """UTF-8. The byte 0 ends a document and is removed from texts."""

    kind: TokenizerKind = "bytes"
    vocabulary = 256
    """Every token is less than this."""
    separator = 0
    """The token that ends a document. No document contains it."""
    file = b""
    """The tokenizer's file; empty for bytes."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Tokens of each text, without the separator."""
        return [np.frombuffer(text.encode().replace(b"\0", b""), np.uint8) for text in texts]

    def decode(self, tokens: np.ndarray) -> str:
        """Readable text; invalid parts become U+FFFD."""
        return bytes(tokens.astype(np.uint8)).decode(errors="replace")


class HuggingFace:
    """A `tokenizer.json`. No special tokens are added, and the separator is removed from texts."""

    kind: TokenizerKind = "tokenizers"

    def __init__(self, file: bytes, name: str, separator: str | int | None) -> None:
        """Raises `DataError` for another kind of file or a missing separator. `name` is for the message."""
        import tokenizers  # an optional dependency, because most data sets are bytes

        self.file = file
        try:
            self._model = tokenizers.Tokenizer.from_buffer(file)
        except Exception as error:  # the package raises plain Exception
            raise DataError(f"tokenizer {name}: not a tokenizer.json: {error}") from error
        self._model.no_truncation()
        self._model.no_padding()
        vocabulary: dict[str, int] = self._model.get_vocab()
        self.separator = _separator(vocabulary, name, separator)
        self.vocabulary = max(vocabulary.values()) + 1
        self._name = name

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Bytes`; on all cores. Raises `DataError` if a text has a part without a token."""
        try:
            found = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the package raises plain Exception
            raise DataError(f"tokenizer {self._name}: cannot encode a text: {error}") from error
        return _without(self.separator, [each.ids for each in found])

    def decode(self, tokens: np.ndarray) -> str:
        return str(self._model.decode(tokens.tolist(), skip_special_tokens=False))

    def name(self, token: int) -> str:
        """The token's name in `tokenizer.json`, which may differ from its text."""
        return str(self._model.id_to_token(token))


class SentencePiece:
    """A SentencePiece `.model`."""

    kind: TokenizerKind = "sentencepiece"

    def __init__(self, file: bytes, name: str, separator: str | int | None) -> None:
        """Raises `DataError` for another kind of file or a missing separator. `name` is for the message."""
        import sentencepiece

        self.file = file
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=file)
        except RuntimeError as error:
            raise DataError(f"tokenizer {name}: not a SentencePiece model: {error}") from error
        self.vocabulary = int(self._model.get_piece_size())
        pieces = {self._model.id_to_piece(number): number for number in range(self.vocabulary)}
        end = int(self._model.eos_id())  # negative if there is none
        self.separator = _separator(pieces, name, end if separator is None and end >= 0 else separator)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Bytes`; on all cores."""
        return _without(self.separator, self._model.encode(list(texts), out_type=int))

    def decode(self, tokens: np.ndarray) -> str:
        return str(self._model.decode(tokens.tolist()))


Tokenizer = Bytes | HuggingFace | SentencePiece


def from_path(path: str, separator: str | None = None) -> Tokenizer:
    """The tokenizer that `path` names: `bytes`, or a `.json` or `.model` file.

    Args:
        separator: the token that ends a document, as text. None: a common one.

    Raises:
        DataError: the file is missing, empty or of another kind.
    """
    if path == "bytes":
        if separator is not None:
            raise DataError(f"separator {separator!r}: bytes are separated by the byte 0, by nothing else")
        return Bytes()
    try:
        file = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"tokenizer {path}: {error.strerror}") from error
    if not file:
        raise DataError(f"tokenizer {path}: the file is empty")
    if path.endswith(".json"):
        return HuggingFace(file, path, separator)
    if path.endswith(".model"):
        return SentencePiece(file, path, separator)
    raise DataError(f"tokenizer {path}: bytes, a tokenizer.json or a SentencePiece .model is wanted")


def of_data(bucket: Bucket) -> Tokenizer:
    """The tokenizer with which a data set was made.

    Raises:
        DataError: there is no data set, or the tokenizer's file has changed.
        StoreError: the file is missing, or the bucket does not answer.
    """
    catalogue = open_catalogue(bucket)
    if catalogue.tokenizer_file is None:
        return Bytes()
    name = bucket.address(catalogue.tokenizer_file.file)
    file = bucket.read(catalogue.tokenizer_file.file)
    digest = hashlib.sha256(file).hexdigest()
    if digest != catalogue.tokenizer_file.sha256:
        raise DataError(f"{name}: sha256 is {digest}, meta.json has {catalogue.tokenizer_file.sha256}")
    kind = HuggingFace if catalogue.tokenizer == "tokenizers" else SentencePiece
    return kind(file, name, catalogue.separator)


def _separator(vocabulary: dict[str, int], name: str, wanted: str | int | None) -> int:
    if isinstance(wanted, int):
        return wanted
    candidates = SEPARATORS if wanted is None else (wanted,)
    for candidate in candidates:
        if candidate in vocabulary:
            return vocabulary[candidate]
    raise DataError(
        f"tokenizer {name}: no token {' or '.join(map(repr, candidates))} to end a document with; name another one"
    )


def _without(separator: int, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    found = [np.array(tokens, np.uint32) for tokens in texts]
    return [tokens[tokens != separator] for tokens in found]
