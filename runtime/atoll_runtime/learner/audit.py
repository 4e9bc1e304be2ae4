"""The unit's part of an audit: the loss of the same few examples with the same version of the global model.

A unit holds the version of global step T when each of its anchors is the newest of its fragment up to T. Versions
arrive one after the other, so the unit holds back those newer than T until it has T, for a limited number of steps.
All hosts have the same versions, so they hold back the same ones. A unit that was not a member of one of the rounds
does not get that version, and takes part in the next audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from atoll_runtime.contract import RunContract
from atoll_runtime.data import Reader
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.compilation import Wrap, uncached
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.transfers import Arrival
from atoll_runtime.model.axes import everywhere
from atoll_runtime.protocol import messages, schedule
from atoll_runtime.protocol.fragments import Layout, Piece, order
from atoll_runtime.protocol.messages import LONGEST_KIND

EXAMPLES = 2
"""Examples of an audit. Each share of the mesh evaluates all of them, so that every chip takes part."""

Evaluate = Callable[[Sequence[Array]], Array]
"""Takes the flat fragments of a global model; returns its loss."""


def examples_of(reader: Reader) -> np.ndarray:
    """The examples of every audit: int32 [n, T+1]."""
    return np.stack([reader.example(at) for at in range(min(EXAMPLES, reader.examples))])


def evaluation(inner: Inner, layout: Layout, examples: np.ndarray, programs: Wrap = uncached) -> Evaluate:
    """Makes the function that computes the loss of `examples`, int32 [n, T+1]."""
    batch = inner.same_on_all_shares(examples)

    def loss(anchors: Sequence[Array], batch: dict[str, Array]) -> Array:
        return inner.evaluate(_tensors(layout, anchors), batch)

    compiled = programs("audit", jax.jit(loss, out_shardings=everywhere(inner.mesh)))
    return lambda anchors: compiled(list(anchors), batch)


class Audit:
    """The audits of one incarnation of a run with audits.

    Args:
        targets: version of each fragment that the unit must reach to be up to date. It does not evaluate these or older
            ones, because what it was seeded with was not encoded, unlike what the others have fetched.
    """

    def __init__(
        self, run: RunContract, layout: Layout, inner: Inner, evaluate: Evaluate, targets: Sequence[int]
    ) -> None:
        assert run.audit is not None
        self._every, self._outer, self._layout, self._evaluate = run.audit, run.outer, layout, evaluate
        outer, chip, mesh = run.outer, inner.mesh.devices.flat[0], inner.mesh.devices.shape
        codec = run.communication.codec or outer.codec
        kind = f"{chip.device_kind}, mesh {'x'.join(map(str, mesh))}, {codec}, {chip.client.platform_version}"
        self._kind = " ".join(kind.split())[:LONGEST_KIND]  # a compiler's version may have lines
        self._patience = 4 + 4 * -(-outer.overlap * outer.interval // outer.fragments)
        """Maximum number of steps for which versions are held back."""
        self._waited = 0
        self._found: tuple[int, Array] | None = None
        self._choose((max(targets) + outer.interval,))

    def admitted(self, arrivals: dict[int, Arrival]) -> dict[int, Arrival]:
        """The arrivals that the unit may take now."""
        early = {number: one for number, one in arrivals.items() if one.version <= self._step}
        self._waited = self._waited + 1 if len(early) < len(arrivals) else 0
        return arrivals if self._waited > self._patience else early

    def look(self, versions: Sequence[int], anchors: Sequence[Array]) -> None:
        """Begins the evaluation if the unit holds the version of the audit; all hosts do so at the same step."""
        if tuple(versions) == self._wanted:
            self._found = self._step, self._evaluate(anchors)
            self._choose((self._step + 1,))
        elif max(versions) > self._step:
            self._choose(versions)

    def tell(self, client: SyncerClient) -> None:
        """Tells the result of an evaluation that has begun. Call after the step during which it was computed."""
        if self._found is not None:
            step, loss = self._found
            self._found = None
            client.say(messages.Audit(step, self._kind, float(loss)))

    def _choose(self, versions: Sequence[int]) -> None:
        """The next audit is the first at or after these versions."""
        self._step = -(-max(versions) // self._every) * self._every
        width, outer = self._layout.width, self._outer
        self._wanted = tuple(
            schedule.newest(self._step, number % width, outer.fragments, outer.interval) if each.size else 0
            for number, each in enumerate(self._layout.fragments)
        )


def _tensors(layout: Layout, flats: Sequence[Array]) -> Mapping[str, Array]:
    """The parameters by name, of the flat fragments."""
    held: dict[str, list[tuple[Piece, Array]]] = {}
    for fragment, flat in zip(layout.fragments, flats, strict=True):
        for piece, part in fragment.cut(flat):
            held.setdefault(piece.tensor, []).append((piece, part))
    ordered = {name: sorted(found, key=lambda each: order(each[0])) for name, found in held.items()}
    return {name: _joined(found, layout.shapes[name]) for name, found in ordered.items()}


def _joined(found: Sequence[tuple[Piece, Array]], shape: tuple[int, ...]) -> Array:
    """A tensor of this shape from all its pieces, which are in order."""
    first, parts = found[0][0], [part for _, part in found]
    if first.index is None:
        return parts[0]
    return jnp.stack(parts).reshape(shape) if first.axis is None else jnp.concatenate(parts, first.axis)
