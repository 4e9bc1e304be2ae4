"""The model that a tape holds: read from a snapshot, merged again, put together, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll_runtime.merge.gradients import Gradient, scan
from atoll_runtime.merge.rda import merge_step
from atoll_runtime.payloads import HostPart
from atoll_runtime.protocol.encoding import TapeError
from atoll_runtime.protocol.fragments import Array
from atoll_runtime.protocol.frames import checksum
from atoll_runtime.protocol.tape import Contributed, Facts, Opening

if TYPE_CHECKING:  # the checkpoint's machinery takes seconds to import
    from atoll_runtime.checkpoint import Cut


@dataclass(frozen=True)
class Held:
    """One version of a fragment, float32."""

    version: int
    theta: Array
    momentum: Array


def recompute(facts: Facts, old: Held, contributed: Contributed, body: memoryview) -> Held:
    """A merge once more, as the service does it. Raises `MergeError`."""
    fragment, at = facts.layout.fragments[contributed.round.fragment], 0
    parts: dict[str, list[HostPart]] = {member.unit: [] for member in contributed.members}
    for share in contributed.shares:
        sent = memoryview(
            bytearray(body[at : at + share.size])
        )  # a copy, because a tape's bytes lie at odd addresses
        parts[share.unit].append(HostPart(share.start, sent, scan(fragment, sent, facts.codec, share.start)))
        at += share.size
    gradients = [Gradient(member.weight, tuple(parts[member.unit])) for member in contributed.members]
    result = merge_step(
        fragment,
        gradients,
        old.theta,
        old.momentum,
        codec=facts.codec,
        rule=facts.merge,
        learning_rate=facts.learning_rate,
        outer_momentum=facts.momentum,
        guard=facts.guard,
    )
    return Held(contributed.round.step, result.theta, result.momentum)


def arrays(opening: Opening, body: memoryview) -> Iterator[Held]:
    """Every fragment of a segment's snapshot."""
    flat, at = np.frombuffer(body, np.uint8).copy().view(np.float32), 0  # aligned
    for fragment, version in zip(opening.facts.layout.fragments, opening.versions, strict=True):
        theta, momentum = flat[at : at + 2 * fragment.size].reshape(2, fragment.size)
        at += 2 * fragment.size
        yield Held(version, theta, momentum)


def sums(held: Held) -> tuple[int, int]:
    """crc32c of Θ and of momentum."""
    return checksum(held.theta.data), checksum(held.momentum.data)


def tensors(parts: Sequence[tuple[Facts, Sequence[Held]]]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Θ and momentum by tensor name, of all shards together.

    Raises:
        TapeError: the shards are not all there, or not of one run.
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
    """Tensors of the checkpoint that are not the same bits; every one of it must be there."""
    wrong = []
    for kind, saved, found in (("theta", cut.theta, theta), ("momentum", cut.momentum, momentum)):
        for name in sorted(saved.keys() | found.keys()):
            a, b = saved.get(name), found.get(name)
            if a is None or b is None or a.shape != b.shape or a.tobytes() != b.tobytes():
                wrong.append(f"{kind} {name}")
    return wrong
