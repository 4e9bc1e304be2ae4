"""A shard of the global model in memory: Θ and momentum by fragment, float32, and what the learners hold of Θ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import Array, Layout
from atoll_runtime.transport import changes, codecs
from atoll_runtime.transport.changes import Change
from atoll_runtime.transport.messages import WHOLE

if TYPE_CHECKING:
    from atoll_runtime.merge.rda import Result


@dataclass(frozen=True)
class Version:
    """One version of a fragment. The arrays are never written to: a merge makes new ones."""

    version: int
    theta: Array
    momentum: Array
    wire: memoryview
    """What learners hold of it, without padding: Θ encoded; with int4, as near as the changes so far have led."""
    change: Change | None = None
    """From the version before, where it can be sent in the place of `wire`."""

    @classmethod
    def make(cls, version: int, theta: Array, momentum: Array, codec: str) -> Version:
        """The first one of a series."""
        return cls(version, theta, momentum, codecs.encode(theta, codec, theta.size))

    def next(self, version: int, merged: Result, codec: str, pool: Executor | None = None) -> Version:
        """The version that a merge has made of this one. With int4 its `wire` is written anew."""
        change = None
        if codec == "int4":
            body = changes.advance(self.wire, merged.theta, merged.wire, pool)
            change = Change(self.version, body)
        return Version(version, merged.theta, merged.momentum, merged.wire, change)

    def part(self, start: int, stop: int, codec: str) -> memoryview:
        """Wire bytes of elements [start, stop) of the fragment, without a copy: none beyond its end."""
        width = codecs.DTYPES[codec].itemsize
        return self.wire[start * width : stop * width]


class State:
    """The newest durable version of every fragment. Touched on the event loop alone.

    Args:
        series: names this life of the shard: only in it are changes counted from one version to the next.
    """

    def __init__(self, layout: Layout, codec: str, fragments: Sequence[Version], series: str) -> None:
        self.layout, self.codec, self.series = layout, codec, series
        self.fragments = list(fragments)

    @classmethod
    def from_tensors(
        cls,
        layout: Layout,
        codec: str,
        theta: Mapping[str, NDArray[Any]],
        momentum: Mapping[str, NDArray[Any]] | None,
        versions: Sequence[int],
        series: str,
    ) -> State:
        """Without `momentum`, it is zero."""
        fragments = []
        for fragment, version in zip(layout.fragments, versions, strict=True):
            flat = layout.flatten(theta, fragment.id)
            b = layout.flatten(momentum, fragment.id) if momentum else np.zeros_like(flat)
            fragments.append(Version.make(version, flat, b, codec))
        return cls(layout, codec, fragments, series)

    def fetch(self, p: int, start: int, stop: int, held: int, series: str) -> tuple[int, int, memoryview]:
        """A part of the newest version for a host that holds `held` of `series`: the version that the body is a change
        of, or WHOLE; its bytes; and the body, behind which zeros come up to so many."""
        found = self.fragments[p]
        change = found.change
        if change is not None and (change.base, self.series) == (held, series):
            body = change.part(start, stop)
            return change.base, body.nbytes, body
        size = (stop - start) * codecs.DTYPES[self.codec].itemsize
        return WHOLE, size, found.part(start, stop, self.codec)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(fragment.version for fragment in self.fragments)

    def snapshot(self) -> tuple[Version, ...]:
        """A consistent cut at no cost: versions are immutable."""
        return tuple(self.fragments)
