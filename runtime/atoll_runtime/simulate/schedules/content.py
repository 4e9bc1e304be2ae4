"""What a simulated fragment holds, in place of numbers: who merged which tokens into it, and from what.

A version's content is the chain of merges that led to it, so that what the protocol claims (in versions, spans and
ledgers) can be checked against what became of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Incarnation = tuple[str, int]
"""Unit and incarnation."""


class Violation(AssertionError):
    """The protocol has broken a promise."""


@dataclass(frozen=True, eq=False, repr=False)
class Delta:
    """A unit's work on one fragment: tokens [start, stop) of an incarnation, from `anchor` on."""

    who: Incarnation
    anchor: Value
    start: int
    stop: int

    def __repr__(self) -> str:
        return f"{self.who[0]}.{self.who[1]} [{self.start}, {self.stop}) since {self.anchor}"


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """One version of one fragment of one shard."""

    shard: int
    fragment: int
    lineage: str
    version: int
    parent: Value | None = None
    members: tuple[Delta, ...] = ()
    ends: dict[Incarnation, int] = field(default_factory=dict)
    """Where the newest merged span of each incarnation ends, in the whole chain."""
    merged: dict[str, int] = field(default_factory=dict)
    """Tokens of each unit, in the whole chain."""
    overwritten: dict[str, int] = field(default_factory=dict)
    """Tokens between two merged spans, where the unit had contributed to the version that replaced them."""
    missed: dict[str, int] = field(default_factory=dict)
    """The same where it had not."""
    origin: Value | None = None
    """The value that this one is a copy of, in an older lineage."""

    def __repr__(self) -> str:
        return f"{self.shard}/{self.fragment}@{self.version}.{self.lineage}"

    @property
    def source(self) -> Value:
        """Two values are the same arrays when they have the same source."""
        return self if self.origin is None else self.origin

    def copy(self, lineage: str) -> Value:
        """The same content as the beginning of another lineage."""
        return Value(
            self.shard,
            self.fragment,
            lineage,
            self.version,
            self.parent,
            (),
            self.ends,
            self.merged,
            self.overwritten,
            self.missed,
            self.source,
        )

    def at(self, version: int) -> Value | None:
        """The ancestor with that version, this one included; None when there is none in this lineage."""
        found: Value | None = self
        while found is not None and found.lineage == self.lineage:
            if found.version == version:
                return found
            found = found.parent
        return None

    def holds(self, other: Value) -> bool:
        """`other` is this value or one that led to it."""
        found: Value | None = self
        while found is not None:
            if found.source is other.source:
                return True
            found = found.parent
        return False

    def merge(self, version: int, deltas: Sequence[Delta], current: dict[str, int]) -> Value:
        """The next version.

        Args:
            current: the incarnation of each unit that the shard knows: the gap before the span of an older one
                was written off when it was replaced.

        Raises:
            Violation: a token would be merged twice, or work is merged that was taken against another content.
        """
        ends, merged = dict(self.ends), dict(self.merged)
        overwritten, missed = dict(self.overwritten), dict(self.missed)
        for delta in deltas:
            unit, incarnation = delta.who
            before = ends.get(delta.who, 0)
            anchor = self.at(delta.anchor.version)
            if anchor is None or anchor.source is not delta.anchor.source:
                raise Violation(
                    f"{unit}.{incarnation} contributes to {self} against {delta.anchor}, not {anchor}"
                )
            if delta.start < before:
                raise Violation(
                    f"{self}: tokens [{delta.start}, {before}) of {unit}.{incarnation} are merged twice"
                )
            ends[delta.who] = delta.stop
            merged[unit] = merged.get(unit, 0) + delta.stop - delta.start
            if incarnation == current[unit]:
                kept_up = any(member.who == delta.who for member in anchor.members)
                fate = overwritten if kept_up else missed
                fate[unit] = fate.get(unit, 0) + delta.start - before
        return Value(
            self.shard,
            self.fragment,
            self.lineage,
            version,
            self,
            tuple(deltas),
            ends,
            merged,
            overwritten,
            missed,
        )
