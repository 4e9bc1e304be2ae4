"""`atoll export`: write a checkpoint's model as safetensors, or compare such an export with its checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll_cli.errors import UsageError
from atoll_cli.text import amount
from atoll_cli.values import bucket_uri, count

if TYPE_CHECKING:  # the runtime is imported when the command is called
    from atoll_runtime.export import Theta

WRITING = ("layout", "dtype", "max_shard_size", "context", "data")
"""Options that need --out."""
MOST_BYTES = 10**15


def add_options(export: argparse.ArgumentParser) -> None:
    """Options of the command."""
    export.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="the run's spec.checkpoint.uri")
    export.add_argument(
        "--step", metavar="N", help="global step; default: the newest, with --check the export's"
    )
    what = export.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="PATH", help="a folder to be made")
    what.add_argument("--check", metavar="PATH", help="compare that export with the checkpoint, bit by bit")
    export.add_argument(
        "--layout",
        choices=("atoll", "llama", "qwen2-moe"),
        help="names and shapes: the checkpoint's own (default), or Hugging Face's with config.json",
    )
    export.add_argument("--dtype", choices=("float32", "bf16"), help="default float32, the checkpoint's")
    export.add_argument("--max-shard-size", metavar="SIZE", help="of one file, such as 500MB; default 5GB")
    export.add_argument("--context", metavar="T", help="max_position_embeddings; default 2048")
    export.add_argument("--data", metavar="URI", help="data set whose tokenizer goes beside the model")
    export.add_argument("--json", action="store_true", help="the result as JSON")


def run_export(options: argparse.Namespace) -> int:
    """Exit status 0: done, or equal; 1: `--check` found a difference.

    Raises:
        UsageError: an option cannot be used.
        ExportError, DataError: there is no such checkpoint, export or data set.
        StoreError: the bucket cannot be used.
    """
    bucket_uri("CHECKPOINT_URI", options.checkpoint)
    if options.data is not None:
        bucket_uri("--data", options.data)
    return _write(options) if options.check is None else _check(options)


def _write(options: argparse.Namespace) -> int:
    from atoll_runtime.export import Order, read_vocabulary, write

    out = _local("--out", options.out)
    if options.context is not None and options.layout in (None, "atoll"):
        raise UsageError("--context goes with --layout llama and qwen2-moe, which have a config.json")
    given = {
        "layout": options.layout,
        "dtype": options.dtype,
        "shard_bytes": None if options.max_shard_size is None else _bytes(options.max_shard_size),
        "context": None if options.context is None else count("--context", options.context),
        "vocabulary": read_vocabulary(options.data) if options.data else None,
    }
    order = Order(out=out, **{field: value for field, value in given.items() if value is not None})
    theta = _theta(options, None)
    written = write(theta, order, lambda name, size: print(f"{name}: {amount(size, 'B')}", file=sys.stderr))
    if options.json:
        print(json.dumps({"out": str(out), "step": theta.step, **dataclasses.asdict(written)}))
    else:
        print(
            f"{out}: step {theta.step}, {written.tensors} tensors, {amount(written.size, 'B')}, {order.layout}"
        )
    return 0


def _check(options: argparse.Namespace) -> int:
    from atoll_runtime.export import Export, compare

    for name in WRITING:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --out")
    path = _local("--check", options.check)
    export = Export.open(path)
    theta = _theta(options, export.facts.step)
    found = compare(theta, export)
    if options.json:
        print(json.dumps({"export": str(path), "step": theta.step, **dataclasses.asdict(found)}))
    elif found.difference:
        print(f"{path}: differs from step {theta.step}: {found.difference}")
    else:
        print(f"{path}: the same bits as step {theta.step} in {found.tensors} tensors, {export.facts.dtype}")
    return 1 if found.difference else 0


def _theta(options: argparse.Namespace, default: int | None) -> Theta:
    from atoll_runtime.export import Theta

    step = default if options.step is None else count("--step", options.step, 0)
    return Theta.open(options.checkpoint, step)


def _local(option: str, text: str) -> Path:
    if not text or "://" in text:
        raise UsageError(f"{option} {text!r}: a path on this machine is wanted")
    return Path(text).absolute()


def _bytes(text: str) -> int:
    try:
        return count("--max-shard-size", text.removesuffix("B"), most=MOST_BYTES)
    except UsageError as error:
        raise UsageError(
            f"--max-shard-size {text!r}: a size such as 500MB is wanted, from 1 byte to {amount(MOST_BYTES, 'B')}"
        ) from error
