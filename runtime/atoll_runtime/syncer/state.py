"""A shard of the global model in memory: Θ and momentum by fragment, float32, and Θ as it goes over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.sync.fragments import Array, Layout
from atoll_runtime.transport import codecs


@dataclass(frozen=True)
class Version:
    """One version of a fragment. The arrays are never written to: a merge makes new ones."""

    version: int
    theta: Array
    momentum: Array
    wire: memoryview
    """Θ encoded, without padding."""

    @classmethod
    def make(cls, version: int, theta: Array, momentum: Array, codec: str) -> Version:
        return cls(version, theta, momentum, codecs.encode(theta, codec, theta.size))

    def part(self, start: int, stop: int, codec: str) -> memoryview:
        """Wire bytes of elements [start, stop) of the padded fragment: zeros beyond its end."""
        width = codecs.DTYPES[codec].itemsize
        inside = self.wire[start * width : stop * width]
        missing = (stop - start) * width - len(inside)
        return memoryview(bytes(inside) + bytes(missing)) if missing else inside


class State:
    """The newest durable version of every fragment. Touched on the event loop alone."""

    def __init__(self, layout: Layout, codec: str, fragments: Sequence[Version]) -> None:
        self.layout, self.codec = layout, codec
        self.fragments = list(fragments)

    @classmethod
    def from_tensors(
        cls,
        layout: Layout,
        codec: str,
        theta: Mapping[str, NDArray[Any]],
        momentum: Mapping[str, NDArray[Any]] | None,
        versions: Sequence[int],
    ) -> State:
        """Without `momentum`, it is zero."""
        fragments = []
        for fragment, version in zip(layout.fragments, versions, strict=True):
            flat = layout.flatten(theta, fragment.id)
            b = layout.flatten(momentum, fragment.id) if momentum else np.zeros_like(flat)
            fragments.append(Version.make(version, flat, b, codec))
        return cls(layout, codec, fragments)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(fragment.version for fragment in self.fragments)

    def snapshot(self) -> tuple[Version, ...]:
        """A consistent cut at no cost: versions are immutable."""
        return tuple(self.fragments)
