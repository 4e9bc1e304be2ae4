"""`atoll replay TAPE…`: run recorded shards of a syncer again, and compare with the recording."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll_cli.arguments import JSON, Option, as_path, bucket_uri, count
from atoll_cli.errors import UsageError
from atoll_cli.text import seconds

if TYPE_CHECKING:  # the runtime is imported when the command is called
    from atoll_runtime.checkpoint import Cut
    from atoll_runtime.replay import Replay

COUNTS = ("segments", "gaps", "restarts", "events", "decisions", "merges", "torn")


OPTIONS = (
    Option("tapes", "TAPE", as_path, "folder or segment, one a shard", many=True),
    JSON,
    Option("--print", "", None, "the tape as JSON lines, without a re-run"),
    Option("--check", "URI", bucket_uri, "compare with a global checkpoint of the run at this URI"),
    Option("--step", "N", count(0), "with --check: which; default: the newest"),
)


def run_replay(options: argparse.Namespace) -> int:
    """Print the tapes or run them again. Exit status 0, or 1 if a re-run differs; the place is printed.

    Raises:
        UsageError: options that do not go together, or a tape that lacks the checkpoint's versions.
        TapeError: a file is not a complete tape, or not of as many shards as the checkpoint.
        StoreError: the checkpoint cannot be read.
    """
    from atoll_runtime.replay import records, replay

    if options.check is None and options.step is not None:
        raise UsageError("--step goes with --check")
    if options.print and options.check is not None:
        raise UsageError("--print goes without --check")
    if options.print:
        for path in options.tapes:
            for record in records(path):
                print(json.dumps(record))
        return 0
    cut = load(options.check, options.step) if options.check else None
    replays = [replay(path, cut) for path in options.tapes]
    identical = all(each.difference is None for each in replays)
    check = compare(cut, options.check, replays) if cut is not None and identical else None
    if options.json:
        tapes = [{"tape": str(p), **facts(r)} for p, r in zip(options.tapes, replays, strict=True)]
        print(json.dumps({"identical": identical, "tapes": tapes, "check": check}))
    else:
        for path, each in zip(options.tapes, replays, strict=True):
            print(summary(path, each))
        if check is not None:
            wrong, same = ", ".join(check["differing"]), f"the same bits in {check['tensors']} tensors"
            print(f"checkpoint of step {check['step']}: " + (f"differs in {wrong}" if wrong else same))
    return 0 if identical and not (check and check["differing"]) else 1


def load(uri: str, step: int | None) -> Cut:
    """The checkpoint to compare with."""
    from atoll_runtime.checkpoint import GlobalStore

    store = GlobalStore(uri)
    steps = store.steps()
    if not steps:
        raise UsageError(f"--check: {uri} holds no complete checkpoint")
    return store.load(steps[0] if step is None else step)


def compare(cut: Cut, uri: str, replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the tensors of Θ and momentum that differ from the checkpoint's."""
    from atoll_runtime.replay import differing, tensors

    for each in replays:
        if each.held and not each.wanted:
            raise UsageError(
                f"--check: the tape of shard {each.facts.shard} never stands at the versions of step {cut.step} in "
                f"{uri}; it ends at {list(each.versions)}"
            )
    theta, momentum = tensors([(each.facts, each.wanted) for each in replays])
    wrong = differing(cut, theta, momentum)
    return {"uri": uri, "step": cut.step, "tensors": len(theta), "differing": wrong}


def facts(replay: Replay) -> dict[str, Any]:
    """The result of a replay as JSON."""
    difference = replay.difference
    return {
        **{name: getattr(replay.facts, name) for name in ("run", "uid", "shard", "shards")},
        **{name: getattr(replay, name) for name in ("depth", *COUNTS)},
        "seconds": round(replay.seconds, 3),
        **{name: getattr(replay, name) for name in ("step", "units", "versions")},
        "difference": None if difference is None else dataclasses.asdict(difference),
    }


def summary(path: Path, replay: Replay) -> str:
    """The result of a replay in a few lines."""
    held = replay.facts
    lines = [
        f"{path}: run {held.run}, shard {held.shard} of {held.shards}, {replay.depth}",
        f"  {replay.events} events in {seconds(replay.seconds)}, {replay.decisions} decisions"
        + ("" if replay.difference else " identical"),
    ]
    if replay.depth == "Contributions":
        lines.append(f"  {replay.merges} merges computed again, the same bits")
    lines += [
        f"  global step {replay.step}, versions {' '.join(map(str, replay.versions))}",
        "  units " + (", ".join(f"{name} (incarnation {n})" for name, n in replay.units.items()) or "none"),
        f"  {replay.segments} segments, {replay.restarts} restarts, {replay.gaps} gaps, {replay.torn} bytes torn off",
    ]
    if replay.difference is not None:
        lines.append(f"  DIFFERENCE: {replay.difference}")
    return "\n".join(lines)
