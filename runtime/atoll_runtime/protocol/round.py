"""A round in flight: one fragment at one global step, from its opening until it is durable."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll_runtime.protocol import norms
from atoll_runtime.protocol.clipping import clipped
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Part
from atoll_runtime.protocol.rules import MOST_STALE_INTERVALS, Rules

SLACK = 2.0
"""A body is awaited for this many times as long as its sender expects."""
RETURN, RETURN_SECONDS = 0.25, 5.0
"""Share of an interval, and the most seconds, that a body is awaited after its unit's session has ended. The unit may
connect again, and then sends only what has not come yet."""
LEAST_REST = 0.1
"""Least seconds of the rest of a second attempt, or the slowest unit's step if that is longer. Further attempts rest 3,
7, … times as long."""
MOST_DOUBLINGS = 10


@dataclass
class Contributions:
    """Headers of a round's parts, all by unit. The headers of a unit's hosts become one contribution. The caller keeps
    the arrays, by unit and host."""

    parts: dict[str, dict[int, Part]] = field(default_factory=dict)
    """By host."""
    members: dict[str, Part] = field(default_factory=dict)
    """The first part of each unit for which the headers of all hosts are in. It stands for the other parts."""
    bodies: dict[str, dict[int, float]] = field(default_factory=dict)
    """Parts with their body here, by host: Σ v² of the elements."""
    arrivals: dict[str, float] = field(default_factory=dict)
    """When the body is expected according to the headers. There is no entry if they do not say."""
    deadlines: dict[str, float] = field(default_factory=dict)
    """Until when the body is awaited."""

    def header(self, unit: str, host: int) -> Part | None:
        """The newest header of this host."""
        return self.parts.get(unit, {}).get(host)

    def asked_by(self, unit: str) -> RoundId | None:
        """The round that asked for the unit's contribution; None if no header of it is in."""
        return next((part.round for part in self.parts.get(unit, {}).values()), None)

    def asked(self, round_id: RoundId) -> tuple[str, ...]:
        """Units with a contribution that this round asked for, by name."""
        return tuple(sorted(unit for unit in self.parts if self.asked_by(unit) == round_id))

    @property
    def lacking(self) -> list[str]:
        """Members with a body still missing, by name."""
        bodies, parts = self.bodies, self.parts
        return [name for name in sorted(self.members) if len(bodies.get(name, ())) < len(parts[name])]

    @property
    def levels(self) -> dict[str, float]:
        """The norm of each member with its body here, as `norms` compares it. Steps are clipped to
        `MOST_STALE_INTERVALS` times their median, so that a unit cannot lower its norm by claiming more steps."""
        lacking = self.lacking
        whole = [name for name in self.members if name not in lacking]
        steps = clipped([self.members[name].steps for name in whole], MOST_STALE_INTERVALS)
        return {
            name: norms.level(math.sqrt(math.fsum(self.bodies[name].values())), count)
            for name, count in zip(whole, steps, strict=True)
        }

    def outrun(self, part: Part) -> bool:
        """A host of the unit has answered again, at a later step. This host will do so too."""
        return any(other.trained > part.trained for other in self.parts.get(part.unit, {}).values())

    def supersedes(self, part: Part) -> bool:
        """Another part of this host is in or will come."""
        known = self.header(part.unit, part.host)
        newer = known is not None and known != part and known.trained >= part.trained
        return newer or part.host in self.bodies.get(part.unit, ()) or self.outrun(part)

    def admit(self, part: Part) -> str:
        """Why the part cannot be taken besides those that are in; empty if it can."""
        if self.outrun(part):
            return f"the part of host {part.host} is of an earlier step than the others are"
        known = self.header(part.unit, part.host)
        if known is not None and known.trained >= part.trained:
            return f"the part of host {part.host} is in already"
        return ""

    def add(self, part: Part) -> str:
        """Takes an admitted header. If the unit's last header does not fit the others, drops all and returns why.

        All hosts answer at the same step. If one connects again while its part is missing, all are asked again. Then
        they answer at a later step, and those parts replace the earlier ones.
        """
        if any(other.trained < part.trained for other in self.parts.get(part.unit, {}).values()):
            self.drop(part.unit)
        parts = self.parts.setdefault(part.unit, {})
        parts[part.host] = part
        if len(parts) < part.hosts:
            return ""
        mine = sorted(parts.values(), key=lambda each: each.start)
        said = {(p.incarnation, p.anchor, p.steps, p.tokens, p.trained, p.padded, p.hosts) for p in mine}
        if len(said) > 1:
            self.drop(part.unit)
            return "the hosts of the unit disagree on anchor, steps, tokens or size"
        if [p.start for p in mine] != [0, *(p.stop for p in mine[:-1])] or mine[-1].stop != part.padded:
            self.drop(part.unit)
            return f"the hosts' ranges do not cover [0, {part.padded}) exactly once"
        self.members[part.unit] = mine[0]
        return ""

    def move(self, unit: str, other: Contributions) -> None:
        """Moves a unit's contribution to another round."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            if unit in mine:
                theirs[unit] = mine.pop(unit)

    def drop(self, unit: str) -> None:
        """Forgets a unit."""
        for mine in vars(self).values():
            mine.pop(unit, None)


@dataclass
class Round:
    """The state of a round, and what follows from that state alone."""

    id: RoundId
    quorum: int
    """K."""
    asked: float
    """When a unit was first asked for a contribution to it: before its step for a far unit, in an earlier round for a
    contribution that is carried over."""
    opened: float = 0.0
    expires: float = 0.0
    rests: float = 0.0
    """Until when it is kept even if no unit is left to wait for. Its grace window does not end earlier."""
    stage: Literal["Early", "Collecting", "Receiving", "Merging", "Writing"] = "Early"
    """Before its step only far units are asked. Then headers are collected until membership is frozen, and the members'
    bodies are received."""
    contributions: Contributions = field(default_factory=Contributions)
    grace_until: float | None = None
    """Set once K members have bodies that come in time."""
    frozen: float = 0.0
    """When the merge began."""
    pulled: set[tuple[str, int]] = field(default_factory=set)
    """(unit, incarnation) asked so far."""
    declined: set[str] = field(default_factory=set)
    """Units that were told to go on without it. Unless they are asked again, they are not waited for, and nothing of
    them is taken."""
    absent: dict[str, float] = field(default_factory=dict)
    """Units that have left or are silent: until when their body is awaited. They may connect again."""
    enough: float = math.inf
    """`in_time` when membership was frozen, or earlier if another round needs the memory. Later bodies count in the
    fragment's next round, or are given up if that has no memory for them."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The record that is written with its merge."""

    def begin(self, now: float, patience: float, step: float) -> None:
        """Its step has come, and it collects from now on.

        Args:
            patience: least seconds that a first attempt waits for its quorum.
            step: seconds of an inner step of the slowest live unit.
        """
        patience = max(patience, 10 * step) * min(2**self.id.attempt, 8)
        # A first attempt does not rest. Later ones do, because units whose hosts disagree would answer the same again.
        rest = max(step, LEAST_REST) * (doublings(self.id) - 1)
        self.stage, self.opened = "Collecting", now
        self.expires, self.rests = now + patience, now + min(rest, patience)

    @property
    def open(self) -> bool:
        """Its merge has not begun, so parts can still be taken and dropped."""
        return self.stage in ("Early", "Collecting", "Receiving")

    @property
    def members(self) -> tuple[Part, ...]:
        """What is merged, in the order of the units' names; nothing before all bodies are here."""
        return () if self.open else tuple(part for _, part in sorted(self.contributions.members.items()))

    @property
    def quorate(self) -> bool:
        """It has K members."""
        return len(self.contributions.members) >= self.quorum

    @property
    def short(self) -> str:
        """A round below quorum, in words."""
        return f"{len(self.contributions.members)} of K={self.quorum} contributions in"

    def answered(self, unit: str) -> bool:
        """The unit's header is not waited for, because it is in or was not taken."""
        return unit in self.contributions.members or unit in self.declined

    def in_time(self, seconds: float) -> float:
        """Until when bodies are awaited that the quorum does not need.

        Args:
            seconds: for how long in a first attempt; infinite if not known. Each attempt accepts links twice as
                slow, because the quickest units did not complete the last one.
        """
        return self.opened + seconds * doublings(self.id)

    def punctual(self, seconds: float) -> int:
        """Number of members with bodies that are here, or expected in time. `seconds`: as for `in_time`."""
        contributions, last = self.contributions, self.in_time(seconds)
        late = sum(contributions.arrivals.get(name, math.inf) > last for name in contributions.lacking)
        return len(contributions.members) - late

    def until(self, awaited: Collection[str], ending: bool) -> float:
        """Until when it waits for headers. Then its membership is frozen if K are in; otherwise it is given up.

        Args:
            awaited: live units that may still contribute.
            ending: no new rounds are opened.
        """
        if self.quorate and not awaited:
            return -math.inf
        if self.grace_until is not None:
            return self.grace_until
        if awaited or not (ending or self.declined):
            return self.expires
        return -math.inf if ending else self.rests

    def wakes(self, now: float) -> list[float]:
        """When it must be looked at again."""
        if self.stage == "Collecting":
            rests = [self.rests] if self.declined and self.rests > now else []
            return [self.expires if self.grace_until is None else self.grace_until, *rests]
        if self.stage == "Receiving":
            lacking = [self.contributions.deadlines[name] for name in self.contributions.lacking]
            enough = [self.enough] if now < self.enough < math.inf else []
            return [*lacking, *self.absent.values(), *enough] if self.quorate else [self.rests]
        return []

    def expect(self, part: Part, seconds: float, rules: Rules, now: float) -> None:
        """A header of the unit is in. Its body is expected in `seconds`; 0 if the host does not know."""
        contributions, unit, arrival = self.contributions, part.unit, now + seconds
        if seconds > 0:
            contributions.arrivals[unit] = max(arrival, contributions.arrivals.get(unit, arrival))
        deadline = now + (SLACK * seconds + rules.patience if seconds > 0 else rules.transfer)
        contributions.deadlines[unit] = max(deadline, contributions.deadlines.get(unit, deadline))

    def close(self, seconds: float) -> list[str]:
        """Freezes membership. Returns the units with a header in that are not members, because another is missing.

        Args:
            seconds: as for `in_time`.
        """
        self.stage, self.enough = "Receiving", self.in_time(seconds)
        return sorted(set(self.contributions.parts) - set(self.contributions.members))

    def overdue(self, live: Collection[str], interval: float, now: float) -> dict[str, str]:
        """Members with bodies that are not awaited any more, and why.

        Args:
            interval: seconds between two rounds of the fragment; infinite if not known.
        """
        found, lacking = {}, self.contributions.lacking
        until = now + min(RETURN * interval, RETURN_SECONDS)
        self.absent = {name: self.absent.get(name, until) for name in lacking if name not in live}
        for name in lacking:
            if now >= self.absent.get(name, math.inf):
                found[name] = "it has left or is silent, and its body is not here"
            elif now >= self.contributions.deadlines[name]:
                found[name] = "its body is not here in time"
        return found

    def awaits(self, now: float) -> bool:
        """A body that is missing may still come in time."""
        arrivals, lacking = self.contributions.arrivals, self.contributions.lacking
        return now < self.enough and any(arrivals.get(name, now) <= self.enough for name in lacking)

    @property
    def complete(self) -> bool:
        """The bodies of K members are here."""
        return len(self.contributions.members) - len(self.contributions.lacking) >= self.quorum

    def drop(self, unit: str) -> None:
        """The unit goes on without this round."""
        self.contributions.drop(unit)
        self.declined.add(unit)
        if not self.quorate:
            self.grace_until = None


def doublings(round_id: RoundId) -> int:
    """How many times as much an attempt grants as the first one."""
    return int(2 ** min(round_id.attempt, MOST_DOUBLINGS))
