"""The loss of the *global* model on held-out text: `python -m atoll_runtime.evaluate --help`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Literal

from atoll_runtime.checkpoint import GlobalStore, StoreError, manifest
from atoll_runtime.data import DataError, Reader
from atoll_runtime.evaluator.measure import Measure, WrongTensors
from atoll_runtime.model import ModelError

LENGTH = 128
MAX_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured of one global checkpoint."""

    step: int
    """Global step of the checkpoint."""
    loss: float
    """Nats per token."""
    tokens: int
    """Predicted ones."""
    split: str
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that could not be read, and why."""


def evaluate(
    checkpoint_uri: str,
    step: int | None,
    data_uri: str,
    split: str = "heldout",
    max_tokens: int = MAX_TOKENS,
    length: int = LENGTH,
    packing: Literal["Stream", "Documents"] = "Stream",
) -> Evaluation:
    """Mean loss over examples spread evenly over the split, the same ones at every call.

    Args:
        step: a global checkpoint; `None` for the newest complete one.
        packing: as in the run's `spec.data`.

    Raises:
        StoreError: no such checkpoint, or it is not whole.
        DataError: no such data or split.
    """
    store = GlobalStore(checkpoint_uri)
    skipped: tuple[str, ...] = ()
    if step is None:
        cut, passed = store.newest(momentum=False)
        skipped = tuple(str(one) for one in passed)
        if cut is None:
            raise StoreError(
                f"{checkpoint_uri}: no complete checkpoint{''.join('; ' + one for one in skipped)}"
            )
    else:
        cut = store.load(step, momentum=False)
    reader = Reader(data_uri, split, length)
    try:
        found = Measure(manifest.model_of(cut.meta, store.uri), reader, length, max_tokens, packing)(
            cut.theta
        )
    except (ModelError, WrongTensors) as error:
        raise StoreError(f"{store.uri}: step {cut.step}: {error}") from error
    return Evaluation(cut.step, found.nats, found.tokens, split, skipped)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0; 1 with one sentence on stderr; 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="atoll_runtime.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="URI", help="the run's checkpoint root")
    parser.add_argument("--step", type=int, help="global step (default: the newest complete one)")
    parser.add_argument("--data", required=True, metavar="URI", help="the data set")
    parser.add_argument("--split", default="heldout", choices=("heldout", "train"))
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--sequence-length", type=int, default=LENGTH)
    parser.add_argument("--packing", default="Stream", choices=("Stream", "Documents"), help="as in the run")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    given = parser.parse_args(argv)
    for option, value in (("--max-tokens", given.max_tokens), ("--sequence-length", given.sequence_length)):
        if value < 1:
            parser.error(f"{option}: {value}: a number from 1 on is wanted")
    try:
        result = evaluate(
            given.checkpoint,
            given.step,
            given.data,
            given.split,
            given.max_tokens,
            given.sequence_length,
            given.packing,
        )
    except (StoreError, DataError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(asdict(result)))
    else:
        for one in result.skipped:
            print(f"passed over: {one}", file=sys.stderr)
        print(f"step {result.step}: {result.loss:.4f} nats per token on {result.tokens} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
