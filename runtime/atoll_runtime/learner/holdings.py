"""What a host has fetched of each fragment, as it came: with int4 the next version is a change of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.transport import changes, codecs
from atoll_runtime.transport.messages import WHOLE, FetchHead
from atoll_runtime.transport.transport import TransportError


@dataclass(frozen=True)
class Holding:
    """This host's part of a fragment. Its bits are the shard's own of that version, in that series."""

    version: int
    series: str
    part: NDArray[Any]


NOTHING = Holding(WHOLE, "", np.empty(0))


class Holdings:
    """One shard's fragments. With int4 it keeps two bytes an element of this host's parts; else nothing.

    Args:
        bounds: this host's [start, stop) in each padded fragment.
    """

    def __init__(self, codec: str, bounds: Sequence[tuple[int, int]]) -> None:
        self._codec, self._bounds = codec, tuple(bounds)
        self._held: dict[int, Holding] = {}

    def of(self, p: int) -> Holding:
        """What a fetch names as held."""
        return self._held.get(p, NOTHING)

    def take(self, head: FetchHead, body: memoryview) -> NDArray[Any]:
        """The part that has come, in the wire's dtype; it is never written to again.

        Raises:
            TransportError: the body is not what was asked for.
        """
        p = head.fragment
        start, stop = self._bounds[p]
        if head.base == WHOLE:
            try:
                part = codecs.view(body, self._codec)
            except ValueError as error:
                raise TransportError(f"{len(body)} bytes came: {error}") from error
            if part.shape != (stop - start,):
                raise TransportError(f"{part.size} elements came, {stop - start} were asked for")
        else:
            held = self.of(p)
            if (head.base, head.series) != (held.version, held.series):
                raise TransportError(f"a change of version {head.base} came, but {held.version} is held")
            try:
                part = changes.applied(held.part, body, start)
            except ValueError as error:
                raise TransportError(str(error)) from error
        if self._codec == "int4":
            self._held[p] = Holding(head.version, head.series, part)
        return part
