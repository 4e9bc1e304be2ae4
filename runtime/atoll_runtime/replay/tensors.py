"""Assembles the model from the tapes of all shards, and compares it with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from atoll_runtime.payloads import Cut
from atoll_runtime.protocol.fragments import Array
from atoll_runtime.protocol.tape import Facts, TapeError
from atoll_runtime.syncer.state import Version


def tensors(parts: Sequence[tuple[Facts, Sequence[Version]]]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Θ and momentum of all shards together, by tensor name.

    Raises:
        TapeError: a shard or its arrays are missing, or the tapes are of different runs.
    """
    first = parts[0][0]
    if {(facts.uid, facts.shards) for facts, _ in parts} != {(first.uid, first.shards)}:
        raise TapeError("the tapes are not of one run: " + ", ".join(sorted({f.uid for f, _ in parts})))
    if sorted(facts.shard for facts, _ in parts) != list(range(first.shards)):
        given = ", ".join(str(facts.shard) for facts, _ in parts)
        raise TapeError(
            f"the run has {first.shards} shards, the tapes are of shard {given}: give one of each"
        )
    theta: dict[str, Array] = {}
    momentum: dict[str, Array] = {}
    for facts, fragments in parts:
        if not fragments:
            raise TapeError(
                f"the tape of shard {facts.shard} holds no arrays: spec.tape must be Contributions, and the model "
                "must fit into the tape's limit"
            )
        for p, held in enumerate(fragments):
            facts.layout.unflatten(p, held.theta, theta)
            facts.layout.unflatten(p, held.momentum, momentum)
    return theta, momentum


def differing(cut: Cut, theta: dict[str, Array], momentum: dict[str, Array]) -> list[str]:
    """Tensors that are not equal bit by bit in the checkpoint and here, or are missing on one side."""
    wrong = []
    for kind, saved, found in (("theta", cut.theta, theta), ("momentum", cut.momentum, momentum)):
        for name in sorted(saved.keys() | found.keys()):
            a, b = saved.get(name), found.get(name)
            if a is None or b is None or a.shape != b.shape or a.tobytes() != b.tobytes():
                wrong.append(f"{kind} {name}")
    return wrong
