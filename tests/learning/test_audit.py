"""Learners that evaluate the same examples with the same version of the model, in simulated time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from atoll_runtime.contract import GraceSpec, QuorumSpec
from atoll_runtime.learner.audit import Audit
from atoll_runtime.model import decoder
from atoll_runtime.protocol import messages, schedule
from atoll_runtime.simulate.training.programs import Programs
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.simulate.training.world import World

pytestmark = pytest.mark.timeout(600)
EVERY = 8


@pytest.fixture(scope="module")
def setting(setting) -> Setting:
    """Four learners."""
    quorum = QuorumSpec(min=4, grace=GraceSpec())
    return replace(setting, quorum=quorum, paces=(1.0, 1.1, 1.3, 1.7), audit=EVERY)


@pytest.fixture(scope="module")
def programs(setting) -> Programs:
    return Programs(setting.run(0), setting.batch)


def audited(world: World) -> dict[str, int]:
    """Global step of each unit's newest audit."""
    return {name: audit.step for name, (_, audit) in world.shard.machine.audits.results.items()}


def test_sound_learners_get_the_same_results_to_the_bit_and_none_is_suspect(setting, programs) -> None:
    world = World(setting, 0, programs=programs)
    world.train()
    assert set(audited(world)) == {"u0", "u1", "u2", "u3"}
    assert min(audited(world).values()) >= world.shard.machine.step - 2 * EVERY, "the slowest takes part, too"
    (measured,) = world.shard.machine.audits.measured.values()
    assert list(measured.values()) == [0.0] * 4
    assert [unit.suspect for unit in world.shard.machine.units.values()] == [""] * 4


def newest(setting: Setting, step: int) -> list[int]:
    """Versions of a unit that was a member of every round up to this step."""
    outer = setting.outer
    return [schedule.newest(step, p, outer.fragments, outer.interval) for p in range(outer.fragments)]


def test_a_unit_does_not_evaluate_what_it_was_seeded_with(setting, programs) -> None:
    """A checkpoint holds float32, where the other units hold what they have fetched."""
    found: list[object] = []
    held = newest(setting, EVERY)
    audit = Audit(setting.run(0), programs.layout, programs.inner, found.append, held)
    audit.look(held, ())
    assert found == []
    audit.look(newest(setting, 2 * EVERY), ())
    assert found == [()]


def test_results_with_versions_in_another_codec_are_of_another_kind(setting, programs) -> None:
    told: list[messages.Audit] = []
    for codec in (None, "int8"):
        run = setting.run(0)
        run = run.model_copy(update={"communication": run.communication.model_copy(update={"codec": codec})})
        audit = Audit(run, programs.layout, programs.inner, lambda anchors: 1.0, newest(setting, 0))
        audit.look(newest(setting, EVERY), ())
        audit.tell(SimpleNamespace(say=told.append))
    assert len({each.kind for each in told}) == len(told) == 2


def test_a_learner_whose_matrix_product_is_wrong_in_one_element_is_suspect(
    setting, programs, monkeypatch
) -> None:
    sound = decoder.mlp

    def broken(weights, y_BTD):
        out_BTD = sound(weights, y_BTD)
        return out_BTD.at[0, 0, 0].multiply(2.0)  # a bit of its exponent

    monkeypatch.setattr(decoder, "mlp", broken)
    wrong = Programs(setting.run(0), setting.batch)
    world = World(setting, 0, programs=programs)
    world.islands[2].programs = wrong
    world.train()
    units = world.shard.machine.units
    assert "audit: of " in units["u2"].suspect, world.shard.machine.audits
    assert [name for name, unit in units.items() if unit.suspect] == ["u2"]
    assert units["u2"].refused == 0, "its contributions do not show it"
