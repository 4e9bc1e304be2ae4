"""Training in simulated time: real steps and merges, the same examples for every number of learners, heals."""

from dataclasses import replace

import numpy as np
import pytest

from atoll_runtime.contract import GraceSpec, OuterSpec, QuorumSpec
from atoll_runtime.data import Reader
from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.simulate.shard import Costs
from atoll_runtime.simulate.training.programs import Share
from atoll_runtime.simulate.training.setting import STREAMS, Failures
from atoll_runtime.simulate.training.world import World, decoupled

pytestmark = pytest.mark.timeout(600)  # 40 s alone, most of it the compiler's


@pytest.mark.parametrize("learners", [1, 2, 4, 8])
def test_learners_together_read_what_data_parallel_training_reads(data, learners) -> None:
    reader, batch = Reader(data, "train", 16), 16
    shares = [Share(reader, 3, first, learners, batch // learners) for first in range(learners)]
    whole = Share(reader, 3, 0, 1, batch)
    for _ in range(5):
        rows = np.concatenate([share.take().tokens for share in shares])
        assert sorted(map(tuple, rows)) == sorted(map(tuple, whole.take().tokens))


def test_a_share_goes_on_where_its_cursor_says(data) -> None:
    reader = Reader(data, "train", 16)
    first = Share(reader, 0, 1, 2, STREAMS)
    cursor = first.take().cursor
    again = Share(reader, 0, 1, 2, STREAMS, cursor)
    assert (again.take().tokens == first.take().tokens).all()


def test_one_learner_with_a_plain_outer_step_makes_the_model_of_data_parallel_training(setting) -> None:
    outer = OuterSpec(fragments=1, interval=4, learning_rate=1.0, momentum=0.0, codec="float32")
    once = replace(setting, outer=outer, steps=5, costs=Costs(0.0, 0.0, 0.0))
    world = World(once, seed=0)
    assert world.train().merges == 1
    steps = world.shard.machine.units["u0"].merged_step
    assert steps >= 3
    programs = world.programs
    inner, batches = programs.inner.twin(programs.first), Share(programs.train, 0, 0, 1, once.sequences)
    for step in range(steps):
        inner.step(batches.take().tokens, learning_rate(once.inner, once.global_steps, step, step, False))
    for name, value in world.theta().items():
        np.testing.assert_allclose(value, np.asarray(inner.theta[name]), rtol=1e-5, atol=1e-6)


def test_a_training_is_the_same_whenever_it_is_run(setting) -> None:
    storm = replace(
        setting,
        paces=(0.82, 1.0),
        jitter=0.1,
        failures=Failures(20.0, 5.0),
        quorum=QuorumSpec(min=1, grace=GraceSpec()),
    )
    first, again = decoupled(storm, 5), decoupled(storm, 5)
    assert first == again
    assert first.losses > 0
    assert first.merged_tokens < first.tokens
    assert abs(first.tokens / (60 * 256) - 1) < 0.2


def test_a_healed_learner_has_the_moments_of_its_last_save(setting) -> None:
    lossy = replace(setting, paces=(1.0, 1.0), failures=Failures(35.0, 4.0), steps=260)
    world = World(lossy, seed=1)
    world.train()
    assert world.losses > 2
    held = [island.moments for island in world.islands if island.incarnations > 1]
    assert any(moments is not None and moments.count > 0 for moments in held)
