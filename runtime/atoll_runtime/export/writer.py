"""Writes an export under a scratch name, a tensor at a time, and renames it into place when it is whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

from atoll_runtime import files
from atoll_runtime.export.entries import Entry, Plan
from atoll_runtime.export.errors import ExportError
from atoll_runtime.export.facts import Facts
from atoll_runtime.export.files import DTYPES, write_file
from atoll_runtime.export.layouts import LAYOUTS
from atoll_runtime.export.theta import Theta
from atoll_runtime.export.vocabulary import Vocabulary

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OURS = (SINGLE, INDEX, "model-*-of-*.safetensors", "config.json", "tokenizer*.json", "tokenizer.model")
"""Names of what an export consists of; a folder with anything else in it is never replaced."""
SHARD_BYTES = 5_000_000_000
CONTEXT = 2048
"""As in Llama's own defaults: rotary positions know no limit, but readers ask for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be written, and where."""

    out: Path
    """A folder; or one file, where the name ends in .safetensors."""
    layout: str = "atoll"
    dtype: str = "float32"
    shard_bytes: int = SHARD_BYTES
    """Of a file's tensors; one that is larger has a file of its own."""
    context: int = CONTEXT
    """`max_position_embeddings` of `config.json`."""
    vocabulary: Vocabulary | None = None
    """Of the data set, whose tokenizer goes beside the model."""
    force: bool = False
    """Replace an export that stands there."""

    @property
    def single(self) -> bool:
        """One file is wanted, not a folder."""
        return self.out.suffix == ".safetensors"


@dataclass(frozen=True, slots=True)
class Written:
    """An export that was made."""

    files: tuple[str, ...]
    tensors: int
    size: int
    """Bytes of all tensors."""


def write(theta: Theta, order: Order, tell: Callable[[str, int], None] = lambda name, size: None) -> Written:
    """Writes Θ as `order` says. Memory holds one tensor of the checkpoint and what reading it takes.

    Args:
        tell: called with the name and the bytes of each file of tensors that stands.

    Raises:
        ExportError: the order cannot be carried out; nothing was written.
        StoreError: the checkpoint cannot be read.
        OSError: the disk cannot be written.
    """
    _check_place(order)
    plan = LAYOUTS[order.layout](theta.model, theta.shapes)
    beside = _beside(plan, order)
    facts = Facts(
        version=version("atoll"),
        step=theta.step,
        model=theta.model,
        checkpoint=f"sha256:{theta.digest}",
        layout=order.layout,
        dtype=order.dtype,
    )
    width = DTYPES[order.dtype][1].itemsize
    shards = [plan.entries] if order.single else list(_shards(plan.entries, order.shard_bytes // width))
    names = [order.out.name] if order.single else _names(len(shards))
    sizes = [sum(entry.size for entry in shard) * width for shard in shards]

    if len(names) > 1:
        index = {
            "metadata": {"total_size": sum(sizes)},
            "weight_map": {
                entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard
            },
        }
        beside[INDEX] = _json(index)
    with _staged(order) as scratch:
        for name, shard, size in zip(names, shards, sizes, strict=True):
            write_file(scratch / name, shard, facts.header(), order.dtype, theta.tensor)
            tell(name, size)
        for name, content in beside.items():
            files.replace(scratch / name, content)
    return Written((*names, *beside), len(plan.entries), sum(sizes))


def _check_place(order: Order) -> None:
    if order.out.is_dir() and order.single:
        raise ExportError(f"{order.out}: is a folder; a file is wanted where the name ends in .safetensors")
    if order.out.exists() and not order.out.is_dir() and not order.single:
        raise ExportError(f"{order.out}: is a file; a folder, or a name that ends in .safetensors, is wanted")
    there = sorted(path.name for path in order.out.iterdir()) if order.out.is_dir() else []
    if (there or order.out.is_file()) and not order.force:
        raise ExportError(f"{order.out}: exists; --force replaces an export that stands there")
    foreign = [name for name in there if not any(fnmatch(name, ours) for ours in OURS)]
    if foreign:
        raise ExportError(f"{order.out}: holds {foreign[0]!r}, which is of no export; it is not replaced")
    if not order.out.parent.is_dir():
        raise ExportError(f"{order.out}: there is no folder {order.out.parent}")


def _beside(plan: Plan, order: Order) -> dict[str, bytes]:
    """The files that go beside those of tensors."""
    if order.single and (plan.config is not None or order.vocabulary is not None):
        what = "tokenizer" if plan.config is None else "config.json"
        raise ExportError(f"{order.out}: {what} goes beside the weights, so a folder is wanted")
    files: dict[str, bytes] = {}
    if plan.config is not None:
        config: dict[str, Any] = {
            **plan.config,
            "max_position_embeddings": order.context,
            "torch_dtype": DTYPES[order.dtype][1].name,
        }
        if order.vocabulary is not None:
            if order.vocabulary.size > config["vocab_size"]:
                raise ExportError(
                    f"data: a vocabulary of {order.vocabulary.size}, the model has {config['vocab_size']}: "
                    "it was not trained on this data set"
                )
            config["eos_token_id"] = order.vocabulary.separator
        files["config.json"] = _json(config)
    return files | dict(order.vocabulary.files if order.vocabulary else {})


def _shards(entries: Sequence[Entry], limit: int) -> Iterator[tuple[Entry, ...]]:
    """Entries in their order, `limit` elements in each file at most, or one entry alone."""
    shard: list[Entry] = []
    filled = 0
    for entry in entries:
        if shard and filled + entry.size > limit:
            yield tuple(shard)
            shard, filled = [], 0
        shard.append(entry)
        filled += entry.size
    yield tuple(shard)


def _names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


@contextmanager
def _staged(order: Order) -> Iterator[Path]:
    """A folder beside the target; what was written there takes the target's name at the end, or is removed.

    The target of a link is replaced, not the link. Where the last step fails, what stood there stands there again.
    """
    out = order.out.resolve()
    fresh, old = (out.parent / f".{out.name}.{os.getpid()}.{what}" for what in ("partial", "replaced"))
    fresh.mkdir()
    try:
        yield fresh
        _check_place(order)  # another one may have come meanwhile
        if order.single:
            (fresh / order.out.name).replace(out)
        else:
            _exchange(fresh, out, old)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if old.exists():
        shutil.rmtree(old)


def _exchange(fresh: Path, out: Path, old: Path) -> None:
    """Gives `fresh` the name `out`, and what had it the name `old`."""
    replaced = out.exists()
    if replaced:
        out.rename(old)
    try:
        fresh.rename(out)
    except OSError:
        if replaced:
            old.rename(out)
        raise
