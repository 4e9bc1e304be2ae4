"""Contributions whose tokens have their fate already."""

from __future__ import annotations

from lone_shard import LONE

from atoll_runtime.protocol.effects import Merge, Persist
from atoll_runtime.protocol.events import Event, Joined, Merged, Part, Persisted, Received, Reported
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.restoring import begin

RULES = LONE
TOKENS = 100
"""Of a step."""


class Shard:
    """A machine that unit a alone contributes to; merges are computed and written at once."""

    def __init__(self) -> None:
        self.machine, self.now, self.trained = begin(RULES, (10,), [0]), 0.0, 0
        self.tell(Joined("a", 1, 0, 1, 0, ""))

    def tell(self, event: Event) -> None:
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, Merge):
                self.tell(Merged(effect.round, 1.0))
            elif isinstance(effect, Persist):
                self.tell(Persisted(effect.round))

    def step(self, count: int) -> None:
        """As `learner/loop.py`: the first step is reported with the second."""
        for _ in range(count):
            self.now += 1.0
            self.trained += TOKENS
            steps = self.trained // TOKENS
            if steps > 1:
                self.tell(Reported("a", 1, 0, steps, steps - 1, self.trained, 1.0, 1.0, steps))

    @property
    def round(self) -> RoundId:
        (round_id,) = self.machine.rounds.held
        return round_id

    def part(self, steps: int, trained: int) -> Part:
        """On `steps` steps against the newest version."""
        anchor = self.machine.versions[0]
        return Part("a", 1, 0, 1, self.round, anchor, steps, steps * TOKENS, 0, 0, 0, 10, 10, trained)


def test_an_incarnation_that_is_started_again_gets_no_token_merged_twice() -> None:
    """Its count begins anew; it is taken again once it is where the first one was."""
    shard = Shard()
    shard.step(3)
    shard.tell(Received(shard.part(3, shard.trained), 1.0))
    account = shard.machine.units["a"].account
    assert (account.merged, account.settled) == (300, {0: 300})
    shard.trained = 0
    shard.tell(Joined("a", 1, 0, 1, 0, ""))
    shard.step(2)
    assert shard.machine.admit(shard.part(2, 200)) == (
        "tokens: [0, 200) begin before 300, where each has its fate already"
    )
    shard.tell(Received(shard.part(2, 200), 1.0))
    shard.step(2)
    shard.tell(Received(shard.part(2, 400), 1.0))
    assert account.merged == 300 and account.balanced and min(account.discarded.values(), default=0) >= 0
    shard.step(1)
    shard.tell(Received(shard.part(2, 500), 1.0))
    assert account.merged == 500 and account.balanced and account.discarded == {}
