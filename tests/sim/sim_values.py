"""The content of simulated fragments in place of numbers: which tokens of which units were merged, and against what.

A version's content is the chain of merges that led to it. So the protocol's claims (versions, spans and ledgers) can be
checked against what really happened to the work. The arrays that the driver handles are real. Each of their elements is
the number under which the content is registered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll_runtime.payloads import HostPart, MergeError, Scan
from atoll_runtime.syncer.state import Version
from atoll_runtime.transport import codecs

if TYPE_CHECKING:
    from sim_shard import ShardProcess

Incarnation = tuple[str, int]
"""Unit and incarnation."""


class Violation(AssertionError):
    """The protocol has broken a promise. Also recorded in `found`, because a task may swallow the exception."""

    found: ClassVar[list[BaseException]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.found.append(self)


@dataclass(frozen=True, eq=False, repr=False)
class Delta:
    """A unit's work on one fragment: tokens [start, stop) of an incarnation, against `anchor`."""

    who: Incarnation
    anchor: Value
    start: int
    stop: int

    def __repr__(self) -> str:
        return f"{self.who[0]}.{self.who[1]} [{self.start}, {self.stop}) since {self.anchor}"


@dataclass(eq=False, repr=False)
class Value:
    """One version of one fragment of one shard."""

    shard: int
    fragment: int
    lineage: str
    """Empty until the shard that begins the lineage has named it."""
    version: int
    parent: Value | None = None
    members: tuple[Delta, ...] = ()
    ends: dict[Incarnation, int] = field(default_factory=dict)
    """End of the newest merged span of each incarnation, in the whole chain."""
    merged: dict[str, int] = field(default_factory=dict)
    """Merged tokens of each unit, in the whole chain."""
    missed: dict[str, int] = field(default_factory=dict)
    """Tokens of each unit between two merged spans."""
    origin: Value | None = None
    """The value in an older lineage of which this one is a copy."""

    def __repr__(self) -> str:
        return f"{self.shard}/{self.fragment}@{self.version}.{self.lineage}"

    @property
    def source(self) -> Value:
        """Two values are the same arrays if they have the same source."""
        return self if self.origin is None else self.origin

    def copy(self, lineage: str = "") -> Value:
        """The same content as the beginning of another lineage."""
        return replace(self, lineage=lineage, members=(), origin=self.source)

    def at(self, version: int) -> Value | None:
        """This value or its ancestor with that version; None if there is none in this lineage."""
        found: Value | None = self
        while found is not None and found.lineage == self.lineage:
            if found.version == version:
                return found
            found = found.parent
        return None

    def holds(self, other: Value) -> bool:
        """Whether `other` is this value or one that led to it."""
        found: Value | None = self
        while found is not None:
            if found.source is other.source:
                return True
            found = found.parent
        return False

    def merge(self, version: int, deltas: Sequence[Delta], current: dict[str, int]) -> Value:
        """The next version.

        Args:
            current: the incarnation of each unit that the shard knows. The gap before the span of an older
                incarnation was written off when that was replaced.

        Raises:
            Violation: a token would be merged twice, or the work was taken against another content.
        """
        ends, merged, missed = dict(self.ends), dict(self.merged), dict(self.missed)
        for delta in deltas:
            unit, incarnation = delta.who
            before = ends.get(delta.who, 0)
            anchor = self.at(delta.anchor.version)
            if anchor is None or anchor.source is not delta.anchor.source:
                raise Violation(f"{delta} is contributed to {self}, and not against {anchor}")
            if delta.start < before:
                raise Violation(f"{self}: {delta} is merged, of which all before {before} was merged already")
            ends[delta.who] = delta.stop
            merged[unit] = merged.get(unit, 0) + delta.stop - delta.start
            if incarnation == current[unit]:
                missed[unit] = missed.get(unit, 0) + delta.start - before
        return Value(
            self.shard, self.fragment, self.lineage, version, self, tuple(deltas), ends, merged, missed
        )


class Registry:
    """Contents by number. bfloat16 represents each number exactly: there are 128 for each power of two."""

    def __init__(self) -> None:
        self._contents: dict[float, Value | Delta | Pending] = {}
        self._numbers: dict[int, float] = {}

    def array(self, content: Value | Delta | Pending, size: int, padded: int = 0) -> np.ndarray:
        """float32 elements that represent the content, followed by zeros up to `padded`."""
        number = self._numbers.get(id(content))
        if number is None:
            count = len(self._contents)
            number = self._numbers[id(content)] = (128 + count % 128) * 2.0 ** (count // 128 - 100)
            self._contents[number] = content
        whole = np.zeros(max(size, padded), np.float32)
        whole[:size] = number
        return whole

    def content(self, array: Any) -> Any:
        """The content that the elements represent; None if all are zero.

        Raises:
            Violation: they represent several contents.
        """
        values = np.frombuffer(array, np.float32) if isinstance(array, memoryview | bytes) else array
        numbers = set(values.tolist()) - {0.0}
        if len(numbers) > 1:
            raise Violation(f"an array is made of {[self._contents[n] for n in sorted(numbers)]}")
        return self._contents[numbers.pop()] if numbers else None

    def body(self, content: Delta, size: int, padded: int, codec: str) -> np.ndarray:
        """The bytes that represent it in a contribution. In a narrow codec these are its first element in float32."""
        whole = self.array(content, size, padded)
        if codec == "float32":
            return whole.view(np.uint8)
        body = np.zeros(codecs.size(padded, codec), np.uint8)
        body[:4] = whole[:1].view(np.uint8)
        return body

    def settle(self, pending: Pending, value: Value) -> None:
        """Register the version that a merge has become, under the merge's number."""
        number = self._numbers.pop(id(pending))
        self._contents[number] = value
        self._numbers[id(value)] = number
        pending.value = value


@dataclass(eq=False)
class Pending:
    """A merge with a computed result that its shard has not taken yet."""

    old: Value
    step: int
    deltas: tuple[Delta, ...]
    value: Value | None = None


class SymbolicArrays:
    """See `interfaces.Arrays`."""

    def __init__(self, process: ShardProcess) -> None:
        self._process, self._world = process, process.world

    def read(self, fragment: Any, header: Any, body: memoryview) -> HostPart:
        finite = not self._world.chance(self._world.weather.merges)
        part = header.part
        if header.codec != "float32":
            whole = np.zeros(part.stop - part.start, np.float32)
            whole[: max(fragment.size - part.start, 0)] = np.frombuffer(body[:4], np.float32)[0]
            body = memoryview(whole.view(np.uint8).data)
        square = 1e8 if self._world.lie_of(part.unit) == "norm" else 1.0
        return HostPart(part.start, body, Scan(finite, (square,) * len(fragment.pieces)))

    def merge(
        self, fragment: Any, step: int, members: Any, parts: Mapping[Any, Any], old: Version
    ) -> Version:
        if self._world.chance(self._world.weather.merges):
            raise MergeError("not finite")
        registry = self._world.registry
        deltas = [
            next(
                registry.content(held.body)
                for (unit, _), held in sorted(parts.items())
                if unit == member.unit
            )
            for member in members
        ]
        before = registry.content(old.theta)
        if registry.content(old.momentum) not in (before, None):  # zero at first
            raise Violation(f"Θ and momentum are of {before} and {registry.content(old.momentum)}")
        theta = registry.array(Pending(before, step, tuple(deltas)), fragment.size)
        return Version(step, theta, theta.copy(), codecs.encode(theta, "float32", theta.size))

    def close(self) -> None:
        pass
