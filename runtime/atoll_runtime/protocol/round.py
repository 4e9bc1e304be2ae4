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
"""A body is awaited for so many times as long as its sender expects."""
RETURN, RETURN_SECONDS = 0.25, 5.0
"""Of an interval, and the most seconds, that the body of a unit is awaited whose session has ended: it connects anew,
and what has come of the body is not sent again."""
LEAST_REST = 0.1
"""Seconds, or the slowest unit's step where that is longer: doubles with each attempt whose answers were not taken."""
MOST_DOUBLINGS = 10


@dataclass
class Contributions:
    """Headers of a round's parts, and how those of a unit's hosts become one contribution: all by unit. Holds no
    arrays: the caller keeps those, by unit and host."""

    parts: dict[str, dict[int, Part]] = field(default_factory=dict)
    """By host."""
    members: dict[str, Part] = field(default_factory=dict)
    """The first part of each unit of which every host's header is in: it speaks for the others."""
    bodies: dict[str, dict[int, float]] = field(default_factory=dict)
    """By host of each part whose body is here: Σ v² of its elements."""
    arrivals: dict[str, float] = field(default_factory=dict)
    """When the body is expected, as the headers say. Where they do not say, it is not in here."""
    deadlines: dict[str, float] = field(default_factory=dict)
    """Until when the body is awaited."""

    def header(self, unit: str, host: int) -> Part | None:
        """The newest of this host."""
        return self.parts.get(unit, {}).get(host)

    def asked_by(self, unit: str) -> RoundId | None:
        """The round that asked for the unit's contribution; None where no header of it is in."""
        return next((part.round for part in self.parts.get(unit, {}).values()), None)

    def asked(self, round_id: RoundId) -> tuple[str, ...]:
        """Units whose contributions this round asked for, by name."""
        return tuple(sorted(unit for unit in self.parts if self.asked_by(unit) == round_id))

    @property
    def lacking(self) -> list[str]:
        """Members of which a body is still to come, by name."""
        bodies, parts = self.bodies, self.parts
        return [name for name in sorted(self.members) if len(bodies.get(name, ())) < len(parts[name])]

    @property
    def levels(self) -> dict[str, float]:
        """The norm of each member, as `norms` compares it. All bodies must be here. Steps count that are at most as
        many intervals' as an anchor may be old: who claims more shall not pass for short."""
        steps = clipped([member.steps for member in self.members.values()], MOST_STALE_INTERVALS)
        return {
            name: norms.level(math.sqrt(math.fsum(self.bodies[name].values())), count)
            for name, count in zip(self.members, steps, strict=True)
        }

    def outrun(self, part: Part) -> bool:
        """A host of the unit has answered again, at a later step: this host will, too."""
        return any(other.trained > part.trained for other in self.parts.get(part.unit, {}).values())

    def supersedes(self, part: Part) -> bool:
        """Another part of this host is in, or will come."""
        known = self.header(part.unit, part.host)
        newer = known is not None and known != part and known.trained >= part.trained
        return newer or part.host in self.bodies.get(part.unit, ()) or self.outrun(part)

    def admit(self, part: Part) -> str:
        """Why the part cannot be taken beside what is in; empty when it can."""
        if self.outrun(part):
            return f"the part of host {part.host} is of an earlier step than the others are"
        known = self.header(part.unit, part.host)
        if known is not None and known.trained >= part.trained:
            return f"the part of host {part.host} is in already"
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
        """Hands a unit's contribution over to another round."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            if unit in mine:
                theirs[unit] = mine.pop(unit)

    def drop(self, unit: str) -> None:
        """Forgets a unit."""
        for mine in vars(self).values():
            mine.pop(unit, None)


@dataclass
class Round:
    """What is known of it, and what follows from that alone."""

    id: RoundId
    asked: float
    """When the first unit was asked for what it holds: before the round was due where that is far, for an earlier round
    where that is carried over."""
    opened: float = 0.0
    expires: float = 0.0
    rests: float = 0.0
    """Until when it is kept though nobody is left to wait for, and its grace window lasts at least."""
    stage: Literal["Early", "Collecting", "Receiving", "Merging", "Writing"] = "Early"
    """Before its step only far units are asked. Then headers are collected until membership is frozen, and the members'
    bodies are received."""
    contributions: Contributions = field(default_factory=Contributions)
    grace_until: float | None = None
    """Set when the quorum is met by members whose bodies come in time."""
    members: tuple[Part, ...] = ()
    frozen: float = 0.0
    """When the merge began."""
    pulled: set[tuple[str, int]] = field(default_factory=set)
    """(unit, incarnation) asked so far."""
    declined: set[str] = field(default_factory=set)
    """Units that were told to go on without it: they are not waited for, and nothing of them is taken, unless they are
    asked again."""
    absent: dict[str, float] = field(default_factory=dict)
    """Until when the body is awaited of each unit that has left or is silent: it may connect anew."""
    returns: float = 0.0
    """Seconds in which it may."""
    enough: float = math.inf
    """Until when bodies are awaited that the quorum does not need: later ones count in the fragment's next round."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is being written with its merge."""

    def begin(self, now: float, patience: float, step: float) -> None:
        """Its step has come: it collects from now on.

        Args:
            patience: seconds that a first attempt waits for its quorum, at least.
            step: seconds of an inner step of the slowest live unit.
        """
        patience = max(patience, 10 * step) * min(2**self.id.attempt, 8)
        # At once after a first answer that was not taken; units whose hosts disagree would answer the same for ever.
        rest = max(step, LEAST_REST) * (doublings(self.id) - 1)
        self.stage, self.opened = "Collecting", now
        self.expires, self.rests = now + patience, now + min(rest, patience)

    @property
    def open(self) -> bool:
        """Its merge has not begun: parts are taken, and dropped."""
        return self.stage in ("Early", "Collecting", "Receiving")

    def answered(self, unit: str) -> bool:
        """The unit's header is not waited for: it is in, or was not taken."""
        return unit in self.contributions.members or unit in self.declined

    def due_again(self, interval: float) -> float:
        """When the fragment's next round is due.

        Args:
            interval: seconds between two rounds of the fragment; infinite where that is not known. Each attempt takes
                links twice as slow: those that were quickest did not make the last one.
        """
        return self.opened + interval * doublings(self.id)

    def punctual(self, interval: float) -> int:
        """Members whose bodies are here, or expected before the fragment is due again. `interval`: as there."""
        contributions, last = self.contributions, self.due_again(interval)
        late = sum(contributions.arrivals.get(name, math.inf) > last for name in contributions.lacking)
        return len(contributions.members) - late

    def until(self, awaited: Collection[str], quorate: bool, ending: bool) -> float:
        """How long it waits for headers. Then its membership is frozen where K are in, else it is given up.

        Args:
            awaited: live units that may still contribute.
            quorate: K headers are in.
            ending: no new rounds are opened.
        """
        if quorate and not awaited:
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
            return [*lacking, *self.absent.values(), *enough] if lacking else [self.rests]
        return []

    def expect(self, part: Part, seconds: float, rules: Rules, now: float) -> None:
        """A header of the unit is in, whose body is expected in so many seconds; 0 where the host does not know."""
        contributions, unit, arrival = self.contributions, part.unit, now + seconds
        if seconds > 0:
            contributions.arrivals[unit] = max(arrival, contributions.arrivals.get(unit, arrival))
        deadline = now + (SLACK * seconds + rules.patience if seconds > 0 else rules.transfer)
        contributions.deadlines[unit] = max(deadline, contributions.deadlines.get(unit, deadline))

    def close(self, minimum: int, interval: float, now: float) -> tuple[list[str], list[str]]:
        """Freezes membership. Gives the units that are no members though a header of theirs is in: those of which
        another one is missing, and those whose bodies come too late for this round.

        Args:
            minimum: K.
            interval: as of `due_again`.
        """
        self.stage, contributions = "Receiving", self.contributions
        self.enough = self.due_again(interval)
        self.returns = min(RETURN * interval, RETURN_SECONDS)
        arrivals = dict.fromkeys(contributions.members, -math.inf)  # of bodies that are here
        arrivals |= {name: contributions.arrivals.get(name, now) for name in contributions.lacking}
        quickest = sorted(arrivals, key=lambda name: (arrivals[name], name))
        belated = [name for name in quickest[minimum:] if arrivals[name] > self.enough]
        return sorted(set(contributions.parts) - set(arrivals)), sorted(belated)

    def overdue(self, live: Collection[str], now: float) -> dict[str, str]:
        """Members whose bodies are not awaited any more, and why."""
        found, lacking = {}, self.contributions.lacking
        self.absent = {
            name: self.absent.get(name, now + self.returns) for name in lacking if name not in live
        }
        for name in lacking:
            if now >= self.absent.get(name, math.inf):
                found[name] = "it has left or is silent, and its body is not here"
            elif now >= self.contributions.deadlines[name]:
                found[name] = "its body is not here in time"
        return found

    def belated(self, minimum: int, now: float) -> list[str]:
        """Members whose bodies come too late for this round, where the quorum does not need them. `minimum`: K."""
        lacking = self.contributions.lacking
        quorate = len(self.contributions.members) - len(lacking) >= minimum
        return lacking if quorate and now >= self.enough else []

    def drop(self, unit: str, minimum: int) -> None:
        """The unit goes on without this round."""
        self.contributions.drop(unit)
        self.declined.add(unit)
        if len(self.contributions.members) < minimum:
            self.grace_until = None

    def freeze(self, now: float) -> None:
        """Every member's body is here: these are merged, in this order."""
        members = self.contributions.members
        self.stage, self.frozen = "Merging", now
        self.members = tuple(members[name] for name in sorted(members))


def short(count: int, minimum: int) -> str:
    """A round below quorum, in words. `minimum`: K."""
    return f"{count} of K={minimum} contributions in"


def doublings(round_id: RoundId) -> int:
    """How much more an attempt grants than the first one."""
    return int(2 ** min(round_id.attempt, MOST_DOUBLINGS))
