"""A run in a queue of Kueue: what its units are told, and how it says that they wait."""

from __future__ import annotations

from run_scene import NOW, RunScene, specs, unit_status

from atoll_operator.plan.conditions import state, transition


def test_run_hands_its_queue_to_its_units_and_another_queue_is_rolled_out() -> None:
    scene = RunScene({"a": 1}, queueName="team", queuePriorityClass="important")
    spec = specs(scene.step())["r-a-0"]
    assert (spec["queueName"], spec["queuePriorityClass"]) == ("team", "important")
    assert scene.plan().status.units_updated == 1
    for changed in ({"queueName": "other"}, {"queuePriorityClass": None}):
        assert scene.change(**changed).plan().status.units_updated == 0


def test_unit_that_waits_in_its_queue_degrades_the_run_with_its_words_and_does_not_heal() -> None:
    queued = transition((), {"Scheduled": state(False, "Queued", "waits")}, 1, NOW)
    preempted = unit_status(phase="Healing", message="AppError: x", conditions=queued)
    scene = RunScene({"a": 2}, queueName="team")
    scene.unit("r-a-0", preempted).unit("r-a-1", unit_status(phase="Healing", message="AppError: x"))
    assert scene.condition("Degraded") == ("True", "Queued", "r-a-0: waits")
    assert scene.only("r-a-1").condition("Degraded")[1] == "UnitHealing"
    scene.unit("r-a-1", unit_status(phase="Scheduling", conditions=queued))
    assert scene.condition("Degraded")[:2] == ("True", "Queued")
