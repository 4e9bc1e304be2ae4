"""A run whose number of units changes: which units exist, and which streams of the data they read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_scene import RunScene, specs, unit_status

from atoll_operator.api.learnerunit import MAX_STREAM
from atoll_operator.plan.limits import sizes
from atoll_operator.plan.run.elastic import certified_units, deal, division, table


def begun(pools: dict[str, int]) -> RunScene:
    scene = RunScene(pools)
    scene.step()
    return scene


def with_guest(learning: bool = True) -> RunScene:
    """A run of one unit, and a unit called `extra` that a user created."""
    scene = begun({"a": 1})
    spec = scene.units["r-a-0"].spec.model_copy(update={"stream": 1, "streams": 2})
    return scene.unit("extra", unit_status(learning), spec=spec, owned=False, by_hand=True, uid="uid-extra")


def test_total_is_spread_over_the_pools() -> None:
    for pools, total, wanted in (
        ({"a": 2, "b": 3}, None, {"a": 2, "b": 3}),
        ({"b": 3, "a": 2}, 4, {"b": 3, "a": 1}),
        ({"a": 2, "b": 3}, 0, {"a": 0, "b": 0}),
        ({"a": 2, "b": 3}, 9, {"a": 6, "b": 3}),
        ({"a": 2, "b": 3}, 300, {"a": 256, "b": 44}),
    ):
        assert sizes(RunScene(pools, units=total).spec) == wanted


def test_unit_that_comes_back_has_its_old_stream() -> None:
    scene = begun({"a": 3})
    first = {name: unit.spec for name, unit in scene.units.items()}
    scene.change(units=0).step()
    assert scene.units == {}
    assert scene.condition("Ready")[:2] == ("True", "ScaledToZero")
    assert scene.condition("Progressing")[:2] == ("False", "ScaledToZero")
    scene.change({"b": 2, "a": 1}, units=2).step()
    scene.change({"a": 3, "b": 2}, units=None).step()
    assert {name: scene.units[name].spec for name in first} == first
    assert {scene.units[name].spec.stream for name in ("r-b-0", "r-b-1")} == {3, 4}


def test_crash_before_the_status_is_written_deals_no_stream_twice() -> None:
    scene = RunScene({"a": 2})
    before = scene.status
    scene.step()
    scene.status = before
    plan = scene.change({"a": 3}).plan()
    assert {name: spec["stream"] for name, spec in specs(plan).items()} == {"r-a-2": 2}
    assert plan.status.streams.base == 2


def test_pool_that_comes_back_as_another_slice_has_new_units_with_the_old_streams() -> None:
    scene = begun({"a": 2})
    other = {"name": "a", "units": 2, "accelerator": "tpu-v6e-slice", "topology": "1x1"}
    plan = scene.change([other]).step()
    assert ([unit.name for unit in plan.delete_units], plan.apply_units) == (["r-a-0", "r-a-1"], ())
    made = specs(scene.plan()).values()
    assert [(spec["topology"], spec["stream"]) for spec in made] == [("1x1", 0), ("1x1", 1)]


def test_unit_created_by_a_user_counts_keeps_its_stream_and_is_not_touched() -> None:
    scene = with_guest()
    assert certified_units(scene.run()) == {"r-a-0": "", "extra": "uid-extra"}
    plan = scene.change({"a": 2}, quorum={"min": 2}).plan()
    assert (plan.status.units_ready, plan.status.units_wanted) == (2, 3)
    assert scene.condition("Ready")[0] == "True"
    assert {name: spec["stream"] for name, spec in specs(plan).items()} == {"r-a-1": 2}
    plan = scene.change(units=0, image="new").plan()
    assert [unit.name for unit in plan.delete_units] == ["r-a-0"]
    assert "extra" not in specs(plan)


@pytest.mark.parametrize(("learns", "changed"), [(True, ["r-a-0"]), (False, [])])
def test_rollout_counts_units_created_by_users(learns: bool, changed: list[str]) -> None:
    scene = with_guest(learns).change(image="new")
    assert list(specs(scene.plan())) == changed


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), max_size=4), min_size=1, max_size=12)
)
def test_streams_are_unique_lasting_and_their_divisions_fit_together(history: list[dict[str, int]]) -> None:
    status, ever = None, {}
    for pools in history:
        places = [(pool, index) for pool, units in sorted(pools.items()) for index in range(units)]
        status = deal(status, {}, places)
        dealt = table(status)
        assert len(set(dealt.values())) == len(dealt)
        assert set(places) <= dealt.keys()
        assert ever.items() <= dealt.items()
        ever = dealt
        for place in places:
            streams = division(dealt[place], status.base)
            assert dealt[place] < streams
            assert streams % status.base == 0
            assert (streams // status.base).bit_count() == 1


def test_streams_of_removed_pools_are_dealt_again_when_no_others_are_left() -> None:
    status = deal(None, {}, [("a", 0)])
    for number in range(40):
        status = deal(status, {}, [("a", 0), *((f"p{number}", index) for index in range(256))])
        assert max(table(status).values()) <= MAX_STREAM
        assert table(status)["a", 0] == 0


def test_unit_whose_spec_cannot_be_read_is_kept() -> None:
    scene = begun({"a": 1})
    scene.units["r-a-0"] = replace(scene.units["r-a-0"], spec=None)
    plan = scene.change(image="new").plan()
    assert (plan.apply_units, plan.delete_units) == ((), ())
