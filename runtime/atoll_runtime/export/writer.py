"""Writes an export under a temporary name, and renames it when it is complete."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from atoll_runtime.checkpoint import StoreError
from atoll_runtime.data.tokenizer import HuggingFace, SentencePiece, Tokenizer
from atoll_runtime.export.layouts import LAYOUTS, Entry, ExportError, Plan
from atoll_runtime.export.reader import DTYPES, INDEX, PREFIX, SINGLE, Theta
from atoll_runtime.files import sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to export, and to where."""

    out: Path
    """A folder that does not exist, or is empty and neither a link nor a mount point."""
    layout: str = "atoll"
    dtype: str = "float32"
    shard_bytes: int = 5_000_000_000
    """Most bytes of a file's tensors. A larger tensor has its own file."""
    context: int = 2048
    """`max_position_embeddings` of `config.json`. Rotary positions have no limit; the default is Llama's."""
    tokenizer: Tokenizer | None = None
    """The data set's; its file is written beside the model."""


@dataclass(frozen=True, slots=True)
class Written:
    """A finished export."""

    files: tuple[str, ...]
    tensors: int
    size: int
    """Bytes of all tensors."""


def write(theta: Theta, order: Order, tell: Callable[[str, int], None] = lambda name, size: None) -> Written:
    """Writes Θ according to `order`. Memory holds the tensors of one file at a time.

    Args:
        tell: called with the name and the bytes of each file of tensors after it is written.

    Raises:
        ExportError: the order cannot be carried out; nothing was written.
        StoreError: the checkpoint cannot be read, or the disk cannot be written.
    """
    _check_place(order.out)
    plan = LAYOUTS[order.layout](theta.model, theta.shapes)
    beside = _beside(plan, order)
    header = {
        "version": version("atoll"),
        "step": str(theta.step),
        "model": theta.model.model_dump_json(by_alias=True, exclude_none=True),
        "checkpoint": f"sha256:{theta.digest}",
        "layout": order.layout,
        "dtype": order.dtype,
    }
    metadata = {PREFIX + key: value for key, value in header.items()}
    if order.layout != "atoll":
        metadata["format"] = "pt"  # `transformers` refuses a file without it
    dtype = DTYPES[order.dtype]
    shards = _shards(plan.entries, order.shard_bytes // dtype.itemsize)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    sizes = [sum(entry.size for entry in shard) * dtype.itemsize for shard in shards]
    if len(shards) == 1:
        names = [SINGLE]
    else:
        weights = {entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard}
        beside[INDEX] = _json({"metadata": {"total_size": sum(sizes)}, "weight_map": weights})
    with _staged(order.out) as scratch:
        for name, shard, size in zip(names, shards, sizes, strict=True):
            save_file(
                {entry.name: np.asarray(entry.value(theta.tensor), dtype, order="C") for entry in shard},
                scratch / name,
                metadata,
            )
            tell(name, size)
        for name, content in beside.items():
            (scratch / name).write_bytes(content)
    return Written((*names, *beside), len(plan.entries), sum(sizes))


def _check_place(out: Path) -> None:
    if out.is_symlink() or out.is_mount():
        raise ExportError(f"{out}: a link or a mount point; export to a new folder in it")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ExportError(f"{out}: exists; delete it, or export to another folder")
    if not out.parent.is_dir():
        raise ExportError(f"{out}: there is no folder {out.parent}")


def _beside(plan: Plan, order: Order) -> dict[str, bytes]:
    """The files that are written beside those of tensors."""
    tokenizer, files = order.tokenizer, {}
    if plan.config is not None:
        config: dict[str, Any] = {
            **plan.config,
            "max_position_embeddings": order.context,
            "torch_dtype": DTYPES[order.dtype].name,
        }
        if tokenizer is not None:
            if tokenizer.vocabulary > config["vocab_size"]:
                raise ExportError(
                    f"data: a vocabulary of {tokenizer.vocabulary}, the model has {config['vocab_size']}: "
                    "it was not trained on this data set"
                )
            config["eos_token_id"] = tokenizer.separator
        files["config.json"] = _json(config)
    if isinstance(tokenizer, HuggingFace):
        names = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokenizer.name(tokenizer.separator),
            "model_input_names": ["input_ids", "attention_mask"],  # neither layout's model has token types
        }
        # Its post-processor would add special tokens, which the data set does not have.
        plain = json.loads(tokenizer.file) | {"post_processor": None}
        files |= {"tokenizer.json": _json(plain), "tokenizer_config.json": _json(names)}
    elif isinstance(tokenizer, SentencePiece):
        files["tokenizer.model"] = tokenizer.file
    return files


def _shards(entries: Sequence[Entry], limit: int) -> list[list[Entry]]:
    """Divides the entries, in order, among files of at most `limit` elements. A larger entry has its own file."""
    shards: list[list[Entry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(each.size for each in shards[-1]) + entry.size > limit:
            shards.append([])
        shards[-1].append(entry)
    return shards


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A temporary folder beside the target. At the end it takes the target's name; after an error it is removed."""
    fresh = out.parent / f".{out.name}.{uuid.uuid4().hex}.partial"
    try:
        fresh.mkdir()
        yield fresh
        for each in (*fresh.iterdir(), fresh):
            sync(each)  # so that not even a loss of power leaves an incomplete export under the target's name
        fresh.rename(out)  # replaces an empty folder; fails if the folder is not empty
        sync(out.parent)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{out}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
