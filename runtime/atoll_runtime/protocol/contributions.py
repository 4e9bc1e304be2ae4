"""The headers of a round's parts, and how those of a unit's hosts become one contribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll_runtime.protocol import norms
from atoll_runtime.protocol.effects import Member
from atoll_runtime.protocol.events import Part
from atoll_runtime.protocol.weights import weight


@dataclass
class Contributions:
    """What is known of one round. Holds no arrays: the caller keeps those, by unit and host."""

    parts: dict[str, dict[int, Part]] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    """Units of which every host's header is in."""
    bodies: dict[tuple[str, int], float] = field(default_factory=dict)
    """(unit, host) of each part whose body is here, with Σ v² of its elements."""

    @property
    def units(self) -> list[str]:
        """Units of which at least one header is in."""
        return list(self.parts)

    def header(self, unit: str, host: int) -> Part | None:
        """The newest of this host."""
        return self.parts.get(unit, {}).get(host)

    @property
    def lacking(self) -> list[str]:
        """Members of which a body is still to come, by name."""
        bodies = self.bodies
        return [
            name
            for name in sorted(self.members)
            if any((name, host) not in bodies for host in self.parts[name])
        ]

    @property
    def levels(self) -> dict[str, float]:
        """The norm of each member, as `norms` compares it. All bodies must be here."""
        squares = {
            name: [self.bodies[name, host] for host in sorted(self.parts[name])] for name in self.members
        }
        return {
            name: norms.level(math.sqrt(math.fsum(each)), self.members[name].steps)
            for name, each in squares.items()
        }

    def outrun(self, part: Part) -> bool:
        """A host of the unit has answered again, at a later step: this host will, too."""
        return any(other.trained > part.trained for other in self.parts.get(part.unit, {}).values())

    def supersedes(self, part: Part) -> bool:
        """Another part of this host is in, or will come."""
        known = self.header(part.unit, part.host)
        newer = known is not None and known != part and known.trained >= part.trained
        return newer or (part.unit, part.host) in self.bodies or self.outrun(part)

    def admit(self, part: Part) -> str:
        """Why the part cannot be taken, for reasons in itself or in the round; empty when it can."""
        if self.outrun(part):
            return f"the part of host {part.host} is of an earlier step than the others are"
        known = self.header(part.unit, part.host)
        if known is not None and known.trained >= part.trained:
            return f"the part of host {part.host} is in already"
        if not 0 <= part.host < part.hosts:
            return f"host: {part.host} of {part.hosts} does not exist"
        if not 0 <= part.start < part.stop <= part.padded:
            return f"range: [{part.start}, {part.stop}) does not lie in a fragment of {part.padded} elements"
        if part.steps < 1 or part.tokens < 1:
            return (
                f"steps: {part.steps} with {part.tokens} tokens since the fragment was received weigh nothing"
            )
        if part.trained < part.tokens:
            return f"trained: {part.trained} is less than the {part.tokens} tokens of the contribution"
        return ""

    def add(self, part: Part) -> str:
        """Takes an admitted header. When the unit's last does not fit the others, all are dropped: says why.

        All hosts answer at the same step. When one connects anew while its part is missing, all are asked again, and
        answer at a later step: those parts take the place of what is there.
        """
        if any(other.trained < part.trained for other in self.parts.get(part.unit, {}).values()):
            self.drop(part.unit)
        parts = self.parts.setdefault(part.unit, {})
        parts[part.host] = part
        if len(parts) < part.hosts:
            return ""
        mine = [parts[host] for host in sorted(parts)]
        if (
            len({(p.incarnation, p.anchor, p.steps, p.tokens, p.trained, p.padded, p.hosts) for p in mine})
            > 1
        ):
            self.drop(part.unit)
            return "the hosts of the unit disagree on anchor, steps, tokens or size"
        if not tiles(mine):
            self.drop(part.unit)
            return f"the hosts' ranges do not cover [0, {part.padded}) exactly once"
        self.members[part.unit] = Member(
            part.unit,
            part.incarnation,
            weight(part.steps, part.tokens),
            part.steps,
            part.tokens,
            part.anchor,
            part.cursor,
            part.inner_step,
            part.trained,
        )
        return ""

    def drop(self, unit: str) -> bool:
        """Forgets a unit; false when nothing of it was in."""
        self.members.pop(unit, None)
        self.bodies = {body: square for body, square in self.bodies.items() if body[0] != unit}
        return self.parts.pop(unit, None) is not None


def tiles(parts: Sequence[Part]) -> bool:
    """The ranges lie end to end over the whole padded fragment."""
    edge = 0
    for part in sorted(parts, key=lambda part: part.start):
        if part.start != edge:
            return False
        edge = part.stop
    return edge == parts[0].padded
