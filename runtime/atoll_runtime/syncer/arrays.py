"""The arrays of production: contributions and fragments in numpy, merged on all cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from atoll_runtime.contract import OuterSpec
from atoll_runtime.merge.buffers import Buffers
from atoll_runtime.merge.gradients import Gradient, scan
from atoll_runtime.merge.rda import RANGE, SCRATCH_BYTES, merge_step
from atoll_runtime.payloads import HostPart
from atoll_runtime.protocol.clipping import divisors, weights
from atoll_runtime.protocol.fragments import Fragment, Layout
from atoll_runtime.protocol.messages import Header, Part
from atoll_runtime.syncer.state import VERSION_BYTES, Version
from atoll_runtime.transport import codecs


class NumpyArrays:
    """See `interfaces.Arrays` for each method."""

    def __init__(self, spec: OuterSpec, layout: Layout) -> None:
        self._spec = spec
        self._helpers = len(os.sched_getaffinity(0)) - 1
        self._mergers = ThreadPoolExecutor(max(1, self._helpers), "syncer-merge")
        largest = max(fragment.size for fragment in layout.fragments)
        ranges = max(len(fragment.pieces) + fragment.size // RANGE for fragment in layout.fragments)
        scratch = SCRATCH_BYTES * min(self._helpers + 1, ranges)
        self._buffers = Buffers(spec.overlap * VERSION_BYTES * largest + scratch)

    def read(self, fragment: Fragment, header: Header, body: memoryview) -> HostPart:
        codec, part = self._spec.codec, header.part
        held = codecs.unpack(body, header.codec, part.stop - part.start, codec)
        return HostPart(part.start, held, scan(fragment, held, codec, part.start))

    def merge(
        self,
        fragment: Fragment,
        step: int,
        members: Sequence[Part],
        parts: Mapping[tuple[str, int], HostPart],
        old: Version,
    ) -> Version:
        spec = self._spec
        merged = merge_step(
            fragment,
            gradients(members, parts, spec, old.version),
            old.theta,
            old.momentum,
            codec=spec.codec,
            rule=spec.merge,
            learning_rate=spec.learning_rate,
            outer_momentum=spec.momentum,
            guard=spec.guard,
            buffers=self._buffers,
            pool=self._mergers,
            helpers=self._helpers,
        )
        return old.next(step, merged, spec.codec, self._mergers)

    def close(self) -> None:
        self._mergers.shutdown()


def gradients(
    members: Sequence[Part], parts: Mapping[tuple[str, int], HostPart], spec: OuterSpec, version: int
) -> list[Gradient]:
    """Returns each member's outer gradient, as its hosts' parts in order, to be merged into this version."""
    own = [
        tuple(part for (unit, _), part in sorted(parts.items()) if unit == member.unit) for member in members
    ]
    counted = weights(members, spec.guard), own, divisors(members, version, spec.interval)
    return [Gradient(*each) for each in zip(*counted, strict=True)]
