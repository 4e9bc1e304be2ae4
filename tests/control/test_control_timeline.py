"""Where a heal's time went, on the real API server: pods' conditions and the learner's own word, in the status."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNIT = "r-one-0"
STAGES = ("schedule", "pull", "start", "restore", "compile", "catchUp")


def test_a_heal_tells_its_stages_as_soon_as_the_learner_has_told_of_its_first_step(bench) -> None:
    one = bench.operator()
    run = bench.run(units=1)
    bench.settled(run, [UNIT, "r-two-0"])
    status = bench.serve(run)
    bench.until("learning", lambda: bench.condition("LearnerUnit", UNIT, "Learning")[0] == "True")
    assert "lastHeal" not in bench.get("LearnerUnit", UNIT)["status"], "to start is not to heal"

    bench.kubelet.fail(bench.namespace, f"{UNIT}-1-0", 137, reason="OOMKilled")
    bench.until(
        "the next gang runs",
        lambda: (
            (pods := bench.pods(UNIT)).keys() == {f"{UNIT}-2-0"}
            and pods[f"{UNIT}-2-0"]["status"]["phase"] == "Running"
        ),
    )
    ran = time.time()
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ran))
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": moment} for kind in ("PodScheduled", "Ready")
    ]
    bench.kubelet.status(bench.namespace, f"{UNIT}-2-0", {"conditions": conditions})
    status["units"][UNIT] |= {"incarnation": 2, "seededStep": 10, "firstMergeTime": ran + 9}
    heal = bench.until(
        "healed, as far as the pods have told and the learner has not",
        lambda: (
            (found := bench.get("LearnerUnit", UNIT)["status"].get("lastHeal"))
            and found["stages"].keys() == {"schedule", "pull"}
            and found
        ),
    )
    seconds = bench.get("LearnerUnit", UNIT)["status"]["lastHealSeconds"]
    assert (heal["incarnation"], heal["reason"], heal["seconds"]) == (2, "OutOfMemory", seconds)
    assert one.figures().get('atoll_heal_stage_seconds_count{stage="compile"}', 0) == 0

    status["units"][UNIT]["beginning"] = {
        "joined": ran + 3, "stepped": ran + 8, "compiling": 4.0, "compiled": 1, "loaded": 18,
    }  # fmt: skip
    stages = bench.until(
        "all stages",
        lambda: (
            (found := bench.get("LearnerUnit", UNIT)["status"]["lastHeal"]["stages"]).keys() == set(STAGES)
            and found
        ),
    )
    assert sum(stages.values()) == pytest.approx(seconds, abs=0.05)
    assert (stages["compile"], stages["catchUp"]) == (4.0, pytest.approx(1.0, abs=0.01))
    assert stages["restore"] == pytest.approx(1.0, abs=0.01)
    assert 3 <= stages["start"] < 5, "pods tell whole seconds"
    (event,) = bench.until(
        "an Event",
        lambda: [e for e in bench.api.list("Event", bench.namespace) if e["reason"] == "HealStages"],
    )
    assert "compile 4.0 s, catch up 1.0 s; 18 of 19 programs came from the cache" in event["message"]
    figures = bench.until(
        "metrics",
        lambda: (f := one.figures()).get('atoll_heal_stage_seconds_count{stage="compile"}') and f,
    )
    assert figures['atoll_heal_stage_seconds_sum{stage="compile"}'] == 4.0
    assert {
        figures[f'atoll_heal_stage_seconds_count{{stage="{name}"}}'] for name in ("pull", "catch_up")
    } == {1}
