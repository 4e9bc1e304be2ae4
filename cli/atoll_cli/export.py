"""`atoll export`: write a checkpoint's model as safetensors, or compare such an export with its checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from atoll_cli.arguments import JSON, Option, as_path, bucket_uri, choice, count
from atoll_cli.errors import UsageError
from atoll_cli.text import amount

WRITING = ("layout", "dtype", "max_shard_size", "context", "data")
"""Options that need --out."""
MOST_BYTES = 10**15


def _bytes(option: str, text: str) -> int:
    try:
        return count(most=MOST_BYTES)(option, text.removesuffix("B"))
    except UsageError as error:
        raise UsageError(
            f"{option} {text!r}: a size such as 500MB is wanted, from 1 byte to {amount(MOST_BYTES, 'B')}"
        ) from error


OPTIONS = (
    Option("checkpoint", "CHECKPOINT_URI", bucket_uri, "the run's spec.checkpoint.uri"),
    Option("--step", "N", count(0), "global step; default: the newest, with --check the export's"),
    Option("--out", "PATH", as_path, "a folder to be made"),
    Option("--check", "PATH", as_path, "compare that export with the checkpoint, bit by bit"),
    Option("--layout", "NAME", choice("atoll", "llama", "qwen2-moe"),
           "names and shapes: the checkpoint's own (atoll, default), or Hugging Face's with config.json"),
    Option("--dtype", "TYPE", choice("float32", "bf16"), "float32 (default), the checkpoint's, or bf16"),
    Option("--max-shard-size", "SIZE", _bytes, "of one file, such as 500MB; default 5GB"),
    Option("--context", "T", count(), "max_position_embeddings; default 2048"),
    Option("--data", "URI", bucket_uri, "data set whose tokenizer goes beside the model"),
    JSON,
)  # fmt: skip


def run_export(options: argparse.Namespace) -> int:
    """Write or compare an export. Exit status 0, or 1 if `--check` found a difference. Raises `UsageError`: an option
    cannot be used; `ExportError` and `DataError`: there is no such checkpoint, export or data set; `StoreError`: the
    bucket cannot be used."""
    if (options.out is None) == (options.check is None):
        raise UsageError("one of --out and --check is wanted")
    return _write(options) if options.check is None else _check(options)


def _write(options: argparse.Namespace) -> int:
    from atoll_runtime.checkpoint import Bucket
    from atoll_runtime.data.tokenizer import of_data
    from atoll_runtime.export import Order, Theta, write

    if options.context is not None and options.layout in (None, "atoll"):
        raise UsageError("--context goes with --layout llama and qwen2-moe, which have a config.json")
    given = {
        "layout": options.layout,
        "dtype": options.dtype,
        "shard_bytes": options.max_shard_size,
        "context": options.context,
        "tokenizer": of_data(Bucket(options.data)) if options.data else None,
    }
    chosen = {field: value for field, value in given.items() if value is not None}
    order = Order(out=options.out.absolute(), **chosen)
    theta = Theta(options.checkpoint, options.step)
    written = write(theta, order, lambda name, size: print(f"{name}: {amount(size, 'B')}", file=sys.stderr))
    if options.json:
        print(json.dumps({"out": str(order.out), "step": theta.step, **dataclasses.asdict(written)}))
    else:
        print(
            f"{order.out}: step {theta.step}, {written.tensors} tensors, {amount(written.size, 'B')}, {order.layout}"
        )
    return 0


def _check(options: argparse.Namespace) -> int:
    from atoll_runtime.export import Export, Theta, compare

    for name in WRITING:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --out")
    path = options.check.absolute()
    export = Export.open(path)
    theta = Theta(options.checkpoint, export.facts.step if options.step is None else options.step)
    difference, tensors = compare(theta, export), len(export.files)
    if options.json:
        facts = {"export": str(path), "step": theta.step, "tensors": tensors, "difference": difference}
        print(json.dumps(facts))
    elif difference:
        print(f"{path}: differs from step {theta.step}: {difference}")
    else:
        print(f"{path}: the same bits as step {theta.step} in {tensors} tensors, {export.facts.dtype}")
    return 1 if difference else 0
