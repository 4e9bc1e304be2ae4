"""The token ledger: what became of every token that a unit trained on.

A unit trains on a stream of tokens, and each fragment learns from all of them. So each fragment divides the stream,
counted from the start of an incarnation, into spans. Each span is in exactly one state: merged in a version, discarded
with a reason, or in flight. A span that is merged or discarded is settled. Counts are in token-fragments: tokens times
the fragments that they were for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

MISSED = "Missed"
"""Replaced by a version to which the unit did not contribute. This happens before its first contribution, or when it
was away so long that its anchor is too old."""
REFUSED = "Refused"
"""In a contribution that was refused for its norm or its claims, and replaced by a newer version since."""
REPLACED = "Replaced"
"""In flight when the incarnation was replaced."""
FINISHED = "Finished"
"""In flight when the run was complete."""


@dataclass(frozen=True)
class Span:
    """Tokens [start, stop) of an incarnation, contributed to one fragment."""

    incarnation: int
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start


@dataclass
class Account:
    """One unit's tokens at one shard."""

    owned: tuple[int, ...]
    """Fragments of which the shard owns a part."""
    incarnation: int = 0
    past: int = 0
    """Tokens of earlier incarnations."""
    position: int = 0
    """Tokens of this incarnation, as far as the shard knows."""
    merged: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    """For each fragment, the position before which every token of this incarnation is settled."""
    refused: dict[int, int] = field(default_factory=dict)
    """For each fragment, the position up to which work was refused that is not settled yet."""
    frozen: dict[int, Span] = field(default_factory=dict)
    """For each fragment, the span in a merge that is being computed."""

    @property
    def tokens(self) -> int:
        """Tokens of all incarnations."""
        return self.past + self.position

    @property
    def trained(self) -> int:
        return self.tokens * len(self.owned)

    @property
    def in_flight(self) -> int:
        """Held by the learner, on the wire, or in a round that is not merged yet."""
        return self._open + self._orphans

    @property
    def balanced(self) -> bool:
        """Every token is in exactly one state."""
        return self.trained == self.merged + sum(self.discarded.values()) + self.in_flight

    @property
    def _open(self) -> int:
        """Tokens of this incarnation that are not settled."""
        return self.position * len(self.owned) - sum(self.settled.values())

    @property
    def _orphans(self) -> int:
        """Tokens of an incarnation that was replaced while they were being merged."""
        return sum(span.tokens for span in self.frozen.values() if span.incarnation != self.incarnation)

    def advance(self, position: int) -> None:
        """The unit has trained on `position` tokens since this incarnation began."""
        self.position = max(self.position, position)

    def freeze(self, p: int, span: Span) -> None:
        """The span is in a round with frozen membership."""
        self.frozen[p] = span
        self.advance(span.stop)

    def merge(self, p: int) -> None:
        """The frozen span is merged."""
        span = self.frozen.pop(p)
        self.merged += span.tokens
        if span.incarnation != self.incarnation:
            return  # the tokens before it were discarded when the incarnation was replaced
        before = self.settled.get(p, 0)
        refused = min(max(self.refused.pop(p, 0), before), span.start)
        self._discard(REFUSED, refused - before)
        self._discard(MISSED, span.start - refused)
        self.settled[p] = span.stop

    def refuse(self, p: int) -> None:
        """The unit's work up to now was refused for fragment `p`."""
        self.refused[p] = self.position

    def thaw(self, p: int) -> None:
        """The merge failed. The span is in flight again if its incarnation is still the current one."""
        span = self.frozen.pop(p, None)
        if span is not None and span.incarnation != self.incarnation:
            self._discard(REPLACED, span.tokens)

    def replace(self, incarnation: int) -> None:
        """A new incarnation begins. Work that is being merged may still count; the other work in flight is lost."""
        mine = sum(span.tokens for span in self.frozen.values() if span.incarnation == self.incarnation)
        self._discard(REPLACED, self._open - mine)
        self.past += self.position
        self.incarnation, self.position = incarnation, 0
        self.settled.clear()
        self.refused.clear()

    def finish(self) -> None:
        """The run is complete, so nothing more is merged."""
        self._discard(FINISHED, self._open)
        self.settled = dict.fromkeys(self.owned, self.position)

    @property
    def durable(self) -> Account:
        """The account as it survives a restart, without merges that are being computed."""
        discarded = dict(self.discarded)
        if self._orphans:
            discarded[REPLACED] = discarded.get(REPLACED, 0) + self._orphans
        return replace(self, discarded=discarded, frozen={})

    def _discard(self, reason: str, tokens: int) -> None:
        if tokens:
            self.discarded[reason] = self.discarded.get(reason, 0) + tokens


def carried(accounts: Sequence[Account], owned: tuple[int, ...]) -> Account:
    """A unit's account when a cut is continued in another number of shards, from its accounts in the old shards.

    Fragments are cut anew, so sums are carried in whole tokens. Tokens in flight are lost with the old lineage.

    Args:
        owned: fragments of which the new shard owns a part.
    """
    parts = sum(len(account.owned) for account in accounts)
    discarded: Counter[str] = Counter()
    for account in accounts:
        discarded.update(account.discarded)
    merged = sum(account.merged for account in accounts) // parts
    whole = Counter({reason: tokens // parts for reason, tokens in discarded.items()})
    trained = max(account.tokens for account in accounts)
    whole[REPLACED] += trained - merged - whole.total()
    return Account(
        owned,
        max(account.incarnation for account in accounts),
        trained,
        merged=merged * len(owned),
        discarded={reason: tokens * len(owned) for reason, tokens in whole.items() if tokens},
    )
