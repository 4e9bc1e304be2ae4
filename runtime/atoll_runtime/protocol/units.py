"""What the syncer knows of each unit: incarnation, hosts, pace, and its merged work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.messages import MOST_TURN, Hello, Part, Report
from atoll_runtime.protocol.pace import StepTime
from atoll_runtime.protocol.rules import MOST_STALE_INTERVALS
from atoll_runtime.protocol.suspicion import suspicion, with_outcome

HISTORY = MOST_STALE_INTERVALS + 2
"""Versions of each fragment that are remembered. A contribution's anchor must be one of them."""
SHORTEST_STEP = 1e-6
"""Seconds. A shorter step does not count."""
LIVE = (
    "hosts_wanted",
    "hosts",
    "addresses",
    "loss",
    "tokens_per_second",
    "pace",
    "reported",
    "hushed",
    "round_trips",
)
"""Fields that a restart of the syncer forgets."""


@dataclass
class Unit:
    """One learner unit through all its incarnations."""

    name: str
    account: Account
    incarnation: int = 0
    """The highest seen. Everything of a lower one is refused."""
    hosts_wanted: int = 1
    hosts: set[int] = field(default_factory=set)
    """Hosts of the current incarnation that are connected now."""
    addresses: dict[int, str] = field(default_factory=dict)
    """Where each connected host serves its snapshots."""
    past_steps: int = 0
    """Of earlier incarnations."""
    step: int = 0
    """The unit's own inner step."""
    steps: int = 0
    tokens: int = 0
    """Sums of this incarnation."""
    loss: float | None = None
    tokens_per_second: float = 0.0
    pace: StepTime = field(default_factory=StepTime)
    """Seconds of an inner step."""
    reported: float | None = None
    """When host 0 last reported, in this connection."""
    hushed: bool = False
    """Shard 0 has told that it is silent. Shards without reports know it only from this."""
    merged_cursor: int = 0
    merged_step: int = 0
    """Data position and inner step of the newest merged contribution, from which a new incarnation goes on."""
    contributions: int = 0
    entered: int = 0
    """Global step at which its incarnation joined."""
    present_since: float = 0.0
    """When its incarnation joined. It may have begun up to ten minutes earlier."""
    first_merge_time: float | None = None
    seeded_step: int = 0
    seed_message: str = ""
    dropped: int = 0
    """Contributions that were refused or discarded."""
    repeated: int = 0
    """The part of them that were for an open round, with tokens that are settled already. They may come from a process
    that restarted its count within its incarnation, so they are not refusals."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Contributions of all incarnations refused for their claims or norm, by reason: `tokens`, `steps`, `norm`."""
    outcomes: int = 0
    """Outcomes of the newest contributions of this incarnation; see `suspicion`."""
    suspect: str = ""
    """Why the results of this incarnation are not trusted; empty if they are."""
    turns: dict[int, float] = field(default_factory=dict)
    """By host the rounds of a fragment of which it can be in one, from its newest header or request for a version. No
    entry stands for 1."""
    unmeasured: set[int] = field(default_factory=set)
    """Hosts of this incarnation that have not measured their link."""
    round_trips: dict[int, float] = field(default_factory=dict)
    """By host seconds, from its newest header."""
    last_merged_step: dict[int, int] = field(default_factory=dict)
    """For each fragment the inner step of its last merged contribution."""
    included_in: dict[int, int] = field(default_factory=dict)
    """For each fragment the newest version that holds a contribution of this incarnation."""
    spoiled: dict[int, int] = field(default_factory=dict)
    """For each fragment the newest version against which a contribution of this incarnation was refused."""

    @property
    def turn(self) -> float:
        """Rounds of a fragment of which the unit can be in one. All hosts answer together, so the slowest
        decides."""
        return max(self.turns.values(), default=1.0)

    @property
    def most_turn(self) -> float:
        """The same, as large as it can be while a link is not known."""
        return MOST_TURN if self.unmeasured else self.turn

    @property
    def round_trip(self) -> float:
        """Seconds, of the host that is furthest away."""
        return max(self.round_trips.values(), default=0.0)

    @property
    def refused(self) -> int:
        """Contributions of all incarnations that were refused for their claims or norm."""
        return sum(self.refusals.values())

    @property
    def last_merge(self) -> int:
        """Global step of the last merge of this incarnation, or at which it joined."""
        return max(self.included_in.values(), default=self.entered)

    @property
    def complete(self) -> bool:
        return len(self.hosts) == self.hosts_wanted

    def until(self, least: float) -> float | None:
        """When the unit, without another report, has been silent for too long to be waited for: after ten of its steps,
        but at least `least` seconds. Infinite if it does not report to this shard. None if a host is missing, its pace
        is not known, or shard 0 has told that it is silent."""
        if math.isinf(least) and self.complete:
            return None if self.hushed else math.inf
        if not self.complete or self.pace.value is None or self.reported is None:
            return None
        return self.reported + max(least, 10 * self.pace.value)

    def join(self, event: Hello, step: int, since: float) -> bool:
        """A host joins; true if its incarnation is new. It has begun at `since` or up to ten minutes earlier."""
        renewed = event.incarnation > self.incarnation
        if renewed:
            self.past_steps += self.steps
            self.account.replace(event.incarnation)
            self.incarnation = event.incarnation
            self.steps = self.tokens = self.contributions = 0
            self.first_merge_time = self.loss = self.reported = None
            self.tokens_per_second = 0.0
            self.entered, self.present_since = step, since
            self.pace = StepTime()
            self.hosts.clear()
            self.addresses.clear()
            self.outcomes, self.suspect = 0, ""
            self.last_merged_step.clear()
            self.included_in.clear()
            self.spoiled.clear()
            self.unmeasured = set(range(event.hosts))
            self.turns = {host: turn for host, turn in self.turns.items() if host < event.hosts}
            self.round_trips = {host: trip for host, trip in self.round_trips.items() if host < event.hosts}
        self.hosts_wanted = event.hosts
        self.hosts.add(event.host)
        self.addresses[event.host] = event.address
        if renewed or event.host == 0:
            self.seeded_step, self.seed_message = event.seeded_step, event.seed_message
        return renewed

    def link_is(self, host: int, turn: float) -> None:
        """A host has measured its link."""
        self.unmeasured.discard(host)
        if turn > 1.0:
            self.turns[host] = turn
        else:
            self.turns.pop(host, None)

    def leave(self, host: int) -> None:
        """A host of the current incarnation leaves."""
        self.hosts.discard(host)
        self.addresses.pop(host, None)
        self.reported = None
        if not self.hosts:
            self.tokens_per_second = 0.0

    def report(self, report: Report, now: float) -> None:
        """Takes a report of host 0 for the unit. The first one's step time includes compilation and does not count."""
        made, seconds = report.steps - self.steps, report.step_seconds
        if made > 0 and self.reported is not None and seconds >= SHORTEST_STEP:
            self.pace.add(seconds)
            self.tokens_per_second = max(0, report.tokens - self.tokens) / made / seconds
        self.step, self.steps, self.tokens = report.step, report.steps, report.tokens
        self.account.advance(report.tokens)
        self.loss = report.loss
        self.reported = now

    def refuse(self, p: int, anchor: int, why: str) -> None:
        """A contribution is refused for its claims or norm. Work since its anchor counts only until there is a newer
        version.

        Args:
            why: the reason in one word, a colon, and the figures.
        """
        reason = why.partition(":")[0]
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self.outcomes = with_outcome(self.outcomes, True)
        self.suspect = self.suspect or suspicion(self.outcomes, why)
        self.spoiled[p] = max(anchor, self.spoiled.get(p, anchor))
        self.account.refuse(p)

    def disputed(self, part: Part) -> str:
        """Why the part cannot hold the tokens that it claims; empty if none of them is settled already."""
        settled = self.account.settled.get(part.round.fragment, 0)
        if part.begun >= settled:
            return ""
        tokens = f"[{part.begun}, {part.trained})"
        return f"tokens: {tokens} begin before {settled}, where all are merged or discarded already"

    def merged(self, round_id: RoundId, member: Part, now: float) -> int | None:
        """Books a merged contribution. Returns the inner steps since this fragment's last one, if known."""
        p = round_id.fragment
        self.account.merge(p)
        self.merged_cursor = max(self.merged_cursor, member.cursor)
        self.merged_step = max(self.merged_step, member.inner_step)
        if member.incarnation != self.incarnation:
            return None  # replaced since membership was frozen: only the old incarnation has this merge
        self.contributions += 1
        self.outcomes = with_outcome(self.outcomes, False)
        self.first_merge_time = self.first_merge_time if self.first_merge_time is not None else now
        self.included_in[p] = round_id.step
        before = self.last_merged_step.get(p)
        self.last_merged_step[p] = member.inner_step
        return None if before is None else member.inner_step - before

    def record(self) -> dict[str, Any]:
        """What survives a restart, in JSON types. Fields that are empty or 0 are left out."""
        kept = {name: value for name in DURABLE if (value := getattr(self, name))}
        kept["account"] = self.account.durable
        record: dict[str, Any] = msgspec.to_builtins(kept, str_keys=True, order="deterministic")
        return record


DURABLE = tuple(each.name for each in fields(Unit) if each.name not in LIVE)
