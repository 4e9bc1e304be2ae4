"""The loss of the *global* model on held-out text: `python -m atoll_runtime.evaluate --help`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Literal

from atoll_runtime.checkpoint import GlobalStore, StoreError, manifest
from atoll_runtime.data import DataError, Reader
from atoll_runtime.evaluator.measure import Loss, Measure, WrongTensors
from atoll_runtime.model import ModelError

LENGTH = 128
MAX_TOKENS = 65_536


def evaluate(
    checkpoint_uri: str,
    step: int | None,
    data_uri: str,
    max_tokens: int = MAX_TOKENS,
    length: int = LENGTH,
    packing: Literal["Stream", "Documents"] = "Stream",
) -> tuple[int, Loss]:
    """The step of a global checkpoint, and the mean loss over held-out examples, which are evenly spaced and
    the same at every call.

    Args:
        step: global step of the checkpoint. None: the newest complete one.
        packing: as in the run's `spec.data`.

    Raises:
        StoreError: there is no such checkpoint, or it is incomplete.
        DataError: there is no such data.
    """
    store = GlobalStore(checkpoint_uri)
    if step is None:
        newest, skipped = store.newest(momentum=False)
        if newest is None:
            raise StoreError("; ".join([f"{checkpoint_uri}: no complete checkpoint", *map(str, skipped)]))
        cut = newest
    else:
        cut = store.load(step, momentum=False)
    reader = Reader(data_uri, "heldout", length)
    try:
        measure = Measure(manifest.model_of(cut.meta, store.uri), reader, length, max_tokens, packing)
        return cut.step, measure(cut.theta)
    except (ModelError, WrongTensors) as error:
        raise StoreError(f"{store.uri}: step {cut.step}: {error}") from error


def main(argv: list[str] | None = None) -> int:
    """Prints step, loss in nats per token and number of tokens as JSON. Exit status 0; after an error 1, with one
    sentence on stderr."""
    parser = argparse.ArgumentParser(prog="atoll_runtime.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="URI", help="the run's checkpoint root")
    parser.add_argument("--step", type=int, help="global step (default: the newest complete one)")
    parser.add_argument("--data", required=True, metavar="URI", help="the data set")
    parser.add_argument("--sequence-length", type=int, default=LENGTH)
    parser.add_argument("--packing", choices=("Stream", "Documents"), default="Stream")
    given = parser.parse_args(argv)
    try:
        step, loss = evaluate(
            given.checkpoint, given.step, given.data, length=given.sequence_length, packing=given.packing
        )
    except (StoreError, DataError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"step": step, "loss": loss.nats, "tokens": loss.tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
