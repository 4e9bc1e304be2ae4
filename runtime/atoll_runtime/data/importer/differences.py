"""How two imports differ, in the words of `atoll data import`'s options."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_runtime.data.catalogue import Plan


def differences(before: Plan, now: Plan) -> Iterator[str]:
    """A phrase for each argument that is not the same, such as `--held-out 0.05, this one has 0.1`."""
    for option, old, new in (
        ("--format", before.format or "by each name", now.format or "by each name"),
        ("--field", before.field, now.field),
        ("--config", before.config or "none", now.config or "none"),
        ("--split", before.split, now.split),
        ("--tokenizer", before.tokenizer, now.tokenizer),
        ("--held-out", f"{before.held_out:g}", f"{now.held_out:g}"),
        ("--shard", f"{before.shard_bytes / 1e6:g}", f"{now.shard_bytes / 1e6:g}"),
    ):
        if old != new:
            yield f"{option} {old}, this one has {new}"
    if before.tokenizer == now.tokenizer:
        if before.tokenizer_sha256 != now.tokenizer_sha256:
            yield "a --tokenizer file of other content"
        elif before.separator != now.separator:
            yield f"a --separator whose token is {before.separator}, this one's is {now.separator}"
    if before.sources != now.sources:
        yield f"{before.sources} SOURCE files, this one has {now.sources}"
    elif before.listing != now.listing:
        yield "SOURCE files of other names or sizes"
    elif before.content != now.content:
        yield "a SOURCE of other content"
