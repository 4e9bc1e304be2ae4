"""A `tokenizer.json`, trained in a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers


def train_tokenizer(
    path: Path, texts: Iterable[str], size: int, special: Sequence[str], whole: bool = True, longest: int = 0
) -> tokenizers.Tokenizer:
    """A byte-level BPE of at most `size` tokens.

    Args:
        whole: every byte has a token; else only those of the texts.
        longest: the file says to truncate texts at so many tokens; 0: it does not.
    """
    levels = tokenizers.pre_tokenizers.ByteLevel
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = levels(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = levels.alphabet() if whole else []
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    if longest:
        model.enable_truncation(longest)
    model.save(str(path))
    return model
