"""Contributions whose tokens have their fate already."""

from __future__ import annotations

from lone_shard import Story, joined

from atoll_runtime.protocol.events import Part, Received


def part(shard: Story, steps: int) -> Part:
    """On the newest `steps` steps, against the newest version."""
    return shard.part("a", steps=steps, tokens=10 * steps)


def test_an_incarnation_that_is_started_again_gets_no_token_merged_twice() -> None:
    """Its count begins anew; it is taken again once it is where the first one was."""
    shard = Story(units="a")
    shard.run(3)
    shard.tell(Received(part(shard, 3), 1.0))
    account = shard.machine.units["a"].account
    assert (account.merged, account.settled) == (30, {0: 30})
    shard.tell(joined("a"))
    shard.steps["a"] = 0
    shard.run(2)
    assert shard.machine.admit(part(shard, 2)) == (
        "tokens: [0, 20) begin before 30, where each has its fate already"
    )
    shard.tell(Received(part(shard, 2), 1.0))
    shard.run(2)
    shard.tell(Received(part(shard, 2), 1.0))
    assert account.merged == 30 and account.balanced and min(account.discarded.values(), default=0) >= 0
    shard.run(1)
    shard.tell(Received(part(shard, 2), 1.0))
    assert account.merged == 50 and account.balanced and account.discarded == {}
