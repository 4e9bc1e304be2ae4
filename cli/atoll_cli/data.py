"""`atoll data`: import text as a data set, check a data set, show its content."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

from atoll_cli.arguments import JSON, Option, add, as_text, bucket_uri, choice, count, number
from atoll_cli.errors import UsageError
from atoll_cli.text import amount, counted, seconds

if TYPE_CHECKING:  # the runtime is imported when the command is called
    from atoll_runtime.data import Catalogue
    from atoll_runtime.data.importer import Order, Standing

P = ParamSpec("P")
EVERY = 2.0
"""Seconds between two lines of progress."""
FIELD = "text"


URI = Option("uri", "URI", bucket_uri, "of the data set: gs://… or file:///…")
ACTIONS = {
    "import": ("text into a data set", (
        URI,
        Option("sources", "SOURCE", as_text, "files, folders, globs", many=True),
        Option("--format", "FORMAT", choice("text", "lines", "jsonl", "parquet"),
               "of every source: text (a file is a document), lines (a line is), jsonl, parquet; default: by the "
               "file's name"),
        Option("--field", "NAME", as_text, f"field or column; default {FIELD}"),
        Option("--tokenizer", "FILE", as_text, "tokenizer.json or SentencePiece .model", "bytes"),
        Option("--separator", "TOKEN", as_text, "ends a document; default: the tokenizer's usual one"),
        Option("--held-out", "F", number(0, 0.5), "fraction of documents", "0.05"),
        Option("--shard", "MB", number(0.001, 1000), "size of a shard", "64"),
        Option("--title", "TEXT", as_text, "what the text is, for people; default: the sources"),
        JSON,
    )),
    "check": ("read all of a data set and compare checksums", (URI, JSON)),
    "show": ("an example as text", (
        URI,
        Option("--split", "SPLIT", choice("train", "heldout"), "train or heldout", "train"),
        Option("--length", "T", count(1, 1 << 20), "tokens", "256"),
        Option("--example", "I", count(0, 10**15), "which", "0"),
    )),
}  # fmt: skip
"""Help text and arguments of each action."""


def add_options(data: argparse.ArgumentParser) -> None:
    """Adds the three commands and their options."""
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (what, options) in ACTIONS.items():
        add(actions.add_parser(name, help=what), options)


def run_data(options: argparse.Namespace) -> int:
    """Runs one action. Exit status 0, or 1 if `check` found an error. Raises `UsageError`: an option cannot be used;
    `DataError`: a source, a document or a data set cannot be used; `StoreError`: the bucket cannot be used."""
    return {"import": _import, "check": _check, "show": _show}[options.action](options)


def _import(options: argparse.Namespace) -> int:
    from atoll_runtime.data.importer import run_import

    order = _order(options)
    size = amount(sum(source.size for source in order.sources), "B")
    print(f"{counted(len(order.sources), 'source')}, {size}", file=sys.stderr)
    catalogue = run_import(options.uri, order, _paced(_tell_import))
    _tell(options, catalogue)
    return 0


def _order(options: argparse.Namespace) -> Order:
    from atoll_runtime.data import tokenizer
    from atoll_runtime.data.importer import Order, sources

    field = options.field or FIELD
    found = sources.files(options.sources, options.format, field)
    if options.field is not None and not any(source.format in ("jsonl", "parquet") for source in found):
        raise UsageError(f"--field {field!r} goes with jsonl and parquet; no SOURCE is one")
    return Order(
        found,
        tokenizer.from_path(options.tokenizer, options.separator),
        held_out=options.held_out,
        shard_bytes=round(options.shard * 1e6),
        title=options.title or ", ".join(options.sources),
    )


def _tell_import(standing: Standing) -> None:
    speed = standing.characters / standing.seconds
    left = "" if standing.left is None else f", {seconds(standing.left)} left"
    print(
        f"{100 * standing.fraction:.0f} %: {amount(standing.documents)} documents, {amount(standing.tokens)} tokens, "
        f"{amount(speed, 'characters/s')}{left}",
        file=sys.stderr,
        flush=True,
    )


def _check(options: argparse.Namespace) -> int:
    from atoll_runtime.data.check import check

    catalogue, wrong = check(options.uri, _paced(_tell_check))
    if not options.json:
        print("".join(f"{fault}\n" for fault in wrong), end="")
    _tell(options, catalogue, wrong=wrong)
    if not options.json:
        print(counted(len(wrong), "fault") if wrong else "all is well")
    return 1 if wrong else 0


def _tell_check(done: int, total: int) -> None:
    print(f"{amount(done, 'B')} of {amount(total, 'B')}", file=sys.stderr, flush=True)


def _show(options: argparse.Namespace) -> int:
    from atoll_runtime.checkpoint.bucket import Bucket
    from atoll_runtime.data import Reader
    from atoll_runtime.data.tokenizer import of_data

    length, index = options.length, options.example
    reader = Reader(options.uri, options.split, length)
    if index >= reader.examples:
        raise UsageError(f"--example {index}: there are {reader.examples} of {length} tokens, counted from 0")
    print(of_data(Bucket(options.uri)).decode(reader.example(index)))
    return 0


def _tell(options: argparse.Namespace, catalogue: Catalogue, **more: object) -> None:
    splits = catalogue.splits.items()
    if options.json:
        facts = {name: getattr(catalogue, name) for name in ("tokenizer", "vocabulary", "separator", "dtype")}
        facts["tokens"] = {name: split.tokens for name, split in splits}
        facts["shards"] = {name: len(split.shards) for name, split in splits}
        print(json.dumps({"uri": options.uri} | more | facts))
        return
    for name, split in splits:
        print(f"{name}: {amount(split.tokens)} tokens in {counted(len(split.shards), 'shard')}")
    print(f"{options.uri}: {catalogue.tokenizer}, vocabulary {catalogue.vocabulary}")


def _paced(tell: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls `tell`, but at most every two seconds."""
    told = time.monotonic()

    def paced(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal told
        if time.monotonic() - told >= EVERY:
            told = time.monotonic()
            tell(*args, **kwargs)

    return paced
