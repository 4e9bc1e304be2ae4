"""Changes of the spec that need new pods, and a quorum that is lost."""

from __future__ import annotations

from typing import Any

from run_scene import NOW, RunScene, condition, pod, specs, unit_status

from atoll_operator.plan.conditions import state, transition
from atoll_operator.plan.limits import Room
from atoll_operator.plan.run.workloads import syncer_digest


def changed(units: int = 3, quorum: int = 2, **spec: Any) -> RunScene:
    """All units learn with the old image, and a new one is asked for."""
    scene = RunScene({"a": units})
    scene.step()
    return scene.change(image="new", quorum={"min": quorum}, **spec)


def unseen_change(scene: RunScene) -> RunScene:
    """A unit has not reacted to its change yet."""
    spec = scene.units["r-a-1"].spec
    return scene.unit("r-a-1", spec=spec.model_copy(update={"image": "new"}), generation=2)


def test_learning_unit_is_not_taken_from_the_quorum() -> None:
    for scene, message in (
        (changed().unit("r-a-1", owned=False), "2 of 3 do"),
        (changed().change(quorum={"min": 3}), "quorum.min 3 of 3 units spares none"),
        (unseen_change(changed()), "2 of 3 do"),
        (changed().silent(), "waits for the syncer"),
    ):
        assert scene.plan().apply_units == ()
        assert message in scene.condition("Progressing")[2]


def test_units_get_a_new_batch_when_all_shards_know_it() -> None:
    """A shard that was told another batch refuses what they train, until they are suspect."""
    pool = {"name": "a", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 3}
    scene = RunScene([pool], syncer={"shards": 2}, quorum={"min": 2})
    scene.step()
    old, new = (syncer_digest(scene.change([pool | more]).run()) for more in ({}, {"batch": 16}))
    scene.unit("r-a-1", unit_status(False))  # it has nothing to lose
    for contracts, units in (((old, old), []), ((old, new), []), ((new, new), ["r-a-1"])):
        shards = tuple(pod(f"r-syncer-{number}", each) for number, each in enumerate(contracts))
        assert list(specs(scene.see(syncer_pods=shards).plan())) == units
        assert ("wait until all shards know the new batch" in scene.condition("Progressing")[2]) is (
            not units
        )
    scene.see(syncer_pods=(pod("r-syncer-0", "older"),)).change(image="new", pools=[pool])
    assert list(specs(scene.plan())) == ["r-a-1"], "another change does not wait for them"


def test_only_units_whose_batch_grows_wait_for_the_shards() -> None:
    kind = {"accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 2}
    pools = [{"name": name, "batch": 8, **kind} for name in "abc"]

    def scene(known: bool = False, **a: Any) -> RunScene:
        """Pool a changes so, b gets a smaller batch, c stays. A unit of each has nothing to lose."""
        made = RunScene(pools, quorum={"min": 2})
        made.step()
        made.change([pools[0] | {"batch": 16} | a, pools[1] | {"batch": 4}, pools[2]], image="new")
        for name in ("r-a-0", "r-b-0", "r-c-0"):
            made.unit(name, unit_status(None, phase="Failed"))
        return made.see(syncer_pods=(pod("r-syncer-0", syncer_digest(made.run()) if known else "old"),))

    assert specs(scene(known=True).plan()).keys() == {"r-a-0", "r-b-0", "r-c-0"}
    assert specs(scene().plan()).keys() == {"r-b-0", "r-c-0"}
    assert (
        scene()
        .condition("Progressing")[2]
        .startswith("2 units wait until all shards know the new batch; 2 of 6")
    )
    turn = scene()
    for name in ("r-a-0", "r-b-0", "r-c-0"):
        turn.unit(name, unit_status())
    assert list(specs(turn.plan())) == ["r-b-0"], "a unit of another pool has its turn"
    assert specs(scene(units=3).plan()).keys() == {"r-b-0", "r-c-0"}, "nor is a unit made with it"
    assert specs(scene(units=3, batch=8).plan()).keys() == {"r-a-0", "r-a-2", "r-b-0", "r-c-0"}
    for batch, made in ((8, {"r-d-0", "r-d-1"}), (9, set())):
        more = scene().change([*pools, {"name": "d", **kind, "batch": batch}])
        assert {name for name in specs(more.plan()) if name.startswith("r-d")} == made, "a further pool"


def test_units_that_lost_the_syncer_are_not_all_changed_at_once() -> None:
    """A new image restarts the syncer too, and until units are connected again none of them learns."""
    lost = unit_status(False, merged_incarnation=1)
    names = [f"r-a-{number}" for number in range(4)]

    def scene(*away: str, since: float = NOW) -> RunScene:
        made = changed(4, 3).syncer(since=since)
        for name in away:
            made.unit(name, lost)
        return made

    assert scene(*names).plan().apply_units == ()
    assert "0 of 4 do" in scene(*names).condition("Progressing")[2]
    assert list(specs(scene("r-a-2").plan())) == ["r-a-2"], "the lost one costs least"
    unmerged = scene(*names).unit("r-a-1", unit_status(False, merged_incarnation=1, incarnation=2))
    assert list(specs(unmerged.plan())) == ["r-a-1"], "nothing of this incarnation is merged yet"
    never = scene(*names).unit("r-a-1", unit_status(False))
    assert list(specs(never.plan())) == ["r-a-1"], "a bad image can be replaced"
    assert scene(*names).plan(599).apply_units == ()
    assert len(specs(scene(*names).plan(600))) == 4, "an image that loses the syncer can be replaced"
    assert scene(*names).silent().plan(10**6).apply_units == ()
    back = scene(*names, since=NOW + 10**6)
    assert back.plan(10**6 + 599).apply_units == (), "the time without a syncer does not count"
    unseen = scene()
    for name in names:
        unseen.unit(name, unit_status(merged_incarnation=1), generation=2)
    assert unseen.plan(10**6).apply_units == (), "the last change is not seen yet"


def test_unit_without_hosts_blocks_a_rollout_for_ten_minutes_and_a_failed_one_for_good() -> None:
    capacity = state(False, "CapacityUnavailable")
    conditions = transition((), {"Scheduled": capacity, "Learning": capacity}, 2, NOW)
    waits = unit_status(phase="Scheduling", incarnation=2, observed_generation=2, conditions=conditions)
    scene = changed(quorum=1)
    scene.step()
    scene.unit("r-a-0", waits)
    assert specs(scene.plan(599)) == {}
    assert list(specs(scene.plan(600))) == ["r-a-1"]
    scene.unit("r-a-0", unit_status(None, phase="Failed"))
    assert specs(scene.plan(10**6)) == {}
    scene = changed(quorum=1, queueName="typo")
    scene.step()
    scene.unit("r-a-0", waits)
    assert specs(scene.plan(10**6)) == {}, "the change itself may be why there are no hosts"


def test_units_for_which_there_is_no_room_do_not_block_a_rollout() -> None:
    scene = changed(4, quorum=1).change({"a": 6})
    assert specs(scene.plan()).keys() == {"r-a-4", "r-a-5"}, "those that may be created are waited for"
    assert list(specs(scene.see(room=Room(4, "hosts: 4 of at most 4 are taken")).plan())) == ["r-a-0"]


def broken(*failed: str, **recovery: Any) -> RunScene:
    """Three units and K = 2; some units are out of restarts."""
    scene = RunScene({"a": 3}, quorum={"min": 2}, recovery=recovery)
    scene.step()
    for name in failed:
        scene.unit(name, unit_status(None, phase="Failed", incarnation=9))
    return scene


def test_run_below_its_quorum_waits_or_fails_after_its_time_as_the_spec_says() -> None:
    assert broken("r-a-0").condition("Ready")[0] == "True"
    status, reason, message = broken("r-a-0", "r-a-1").condition("Ready", 10**6)
    assert (status, reason) == ("False", "QuorumLost")
    assert "2 of 3 units are out of restarts, 1 are left, quorum.min is 2; the run waits" in message
    left = broken("r-a-0", "r-a-1", belowQuorum="Fail", belowQuorumSeconds=0)
    assert left.plan().status.phase == "Failed"
    for name in ("r-a-0", "r-a-1"):
        left.unit(name, owned=False, ours=False)
    assert left.plan().status.phase == "Running", "units that an earlier run of its name left are none of it"
    policy = {"belowQuorum": "Fail", "belowQuorumSeconds": 60}
    assert broken("r-a-0", **policy).plan(10**6).status.phase == "Running"
    scene = broken("r-a-0", "r-a-2", **policy)
    seen = scene.step(5)
    assert (seen.status.phase, seen.wake) == ("Running", NOW + 65), "the time counts from when it is seen"
    assert (scene.plan(64).status.phase, scene.plan(64).wake) == ("Running", NOW + 65)
    failed = scene.plan(65).status
    assert (failed.phase, condition(failed, "Failed")[1]) == ("Failed", "QuorumLost")
    suspended = scene.change(suspend=True).step(65)
    assert suspended.status.phase == "Suspending"
    assert suspended.wake is not None and suspended.wake > NOW + 65
    assert scene.change(suspend=False).plan(3600).status.phase == "Running"
