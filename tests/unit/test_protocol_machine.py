"""Stories that hypothesis tells: faults of every party at any moment, and the checks of `tests/sim`."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sim_scenario import Weather, draw
from sim_world import World

CLEAR = Weather(0.02)
STORMS = {
    "clear": CLEAR,
    "delays": replace(CLEAR, latency=0.3, slow=0.1),
    "losses": replace(CLEAR, loss=0.5),
    "breaks": replace(CLEAR, breaks=0.1),
    "bucket": replace(CLEAR, bucket=0.7),
    "merges": replace(CLEAR, merges=0.5),
}
any_shard = any_unit = st.integers(0, 9)


class Protocol(RuleBasedStateMachine):
    """A whole run: its shards, units, network and bucket. Every event in it is checked as it happens."""

    @initialize(seed=st.integers(0, 10**6))
    def begin(self, seed: int) -> None:
        self.world = World(replace(draw(seed), storm=CLEAR, faults=()))
        self.world.run_for(3)

    @rule(seconds=st.floats(0.01, 8.0))
    def time_passes(self, seconds: float) -> None:
        self.world.run_for(seconds)

    @rule(events=st.integers(1, 40))
    def a_few_things_happen(self, events: int) -> None:
        for _ in range(events):
            if self.world.pending:
                self.world.step()

    @rule(kind=st.sampled_from(sorted(STORMS)))
    def the_weather_turns(self, kind: str) -> None:
        self.world.weather = STORMS[kind]

    @rule(number=any_shard)
    def a_shard_is_killed(self, number: int) -> None:
        self.world.crash(self.world.shards[number % len(self.world.shards)])

    @rule(number=any_shard)
    def a_killed_shard_starts_at_once(self, number: int) -> None:
        slot = self.world.shards[number % len(self.world.shards)]
        slot.crash()
        slot.start()

    @rule(number=any_shard)
    def a_volume_is_lost(self, number: int) -> None:
        self.world.crash(self.world.shards[number % len(self.world.shards)], "lose volume")

    @rule(number=any_unit)
    def a_unit_is_killed(self, number: int) -> None:
        self.world.kill(self.world.units[number % len(self.world.units)])

    @rule(number=any_unit)
    def a_unit_is_replaced_while_it_runs(self, number: int) -> None:
        self.world.units[number % len(self.world.units)].start()

    @rule(number=any_unit, seed=st.integers(0, 99))
    def a_session_breaks(self, number: int, seed: int) -> None:
        for process in self.world.units[number % len(self.world.units)].processes:
            if process.channels:
                random.Random(seed).choice(list(process.channels)).cut()

    @rule(number=any_shard, seconds=st.floats(0.5, 20.0))
    def a_shard_is_cut_off(self, number: int, seconds: float) -> None:
        self.world.cut_off(self.world.shards[number % len(self.world.shards)], seconds)

    @precondition(lambda self: not self.world.finished)
    @rule()
    def the_faults_stop_and_the_run_reaches_its_end(self) -> None:
        self.world.run()

    @invariant()
    def every_token_has_one_fate(self) -> None:
        if not hasattr(self, "world"):
            return
        for slot in self.world.shards:
            if slot.process is not None and slot.process.service is not None:
                self.world.checks.judge(slot.process)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run()
            self.world.close()


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=100, stateful_step_count=12)
