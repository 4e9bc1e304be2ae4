"""A round's parts, and how the parts of a unit's hosts become one contribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll_runtime.sync.events import Member, Part
from atoll_runtime.sync.weights import weight


@dataclass
class Contributions:
    """What arrived for one round. Holds no arrays: the caller keeps those, by unit and host."""

    parts: dict[str, dict[int, Part]] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    """Units whose parts are all in."""

    @property
    def units(self) -> list[str]:
        """Units of which at least one part is in."""
        return list(self.parts)

    def has(self, unit: str, host: int) -> bool:
        return host in self.parts.get(unit, {})

    def outrun(self, part: Part) -> bool:
        """A host of the unit has answered again, at a later step: this host will, too."""
        return any(other.trained > part.trained for other in self.parts.get(part.unit, {}).values())

    def admit(self, part: Part) -> str:
        """Why the part cannot be taken, for reasons in itself or in the round; empty when it can."""
        if self.outrun(part):
            return f"the part of host {part.host} is of an earlier step than the others are"
        known = self.parts.get(part.unit, {}).get(part.host)
        if part.unit in self.members or (known is not None and known.trained == part.trained):
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
        """Takes an admitted part. When the unit's last does not fit the others, all are dropped: says why.

        All hosts answer at the same step. When one connects anew while its part is missing, all are asked again, and
        answer at a later step: those parts take the place of what is there.
        """
        parts = self.parts.setdefault(part.unit, {})
        for host in [host for host, other in parts.items() if other.trained < part.trained]:
            del parts[host]
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
        return self.parts.pop(unit, None) is not None


def tiles(parts: Sequence[Part]) -> bool:
    """The ranges lie end to end over the whole padded fragment."""
    edge = 0
    for part in sorted(parts, key=lambda part: part.start):
        if part.start != edge:
            return False
        edge = part.stop
    return edge == parts[0].padded
