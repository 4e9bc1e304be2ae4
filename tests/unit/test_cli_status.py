"""`atoll status` with a kubectl on PATH that prints what the test sets: output, JSON and exit status. That the
definitions have the fields: operator/test_specs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from played_kubectl import Call, pod

from atoll_cli.text import held_out, seconds
from atoll_cli.views import HeldOutView, Sample, sample_of

LEARNING = {"type": "Learning", "status": "True"}


def run(name: str, namespace: str = "default", **status: Any) -> dict[str, Any]:
    conditions = [
        {"type": kind, "status": str(status.get("phase") == kind)} for kind in ("Complete", "Failed")
    ]
    return {
        "kind": "TrainingRun",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"target": {"globalSteps": 300}},
        "status": {"conditions": conditions, **status},
    }


def unit(name: str, of: str = "r", **status: Any) -> dict[str, Any]:
    spec = {"run": of, "pool": "a"}
    return {"kind": "LearnerUnit", "metadata": {"name": name}, "spec": spec, "status": status}


@pytest.mark.parametrize("watch", [(), ("-w",)], ids=["once", "watching"])
@pytest.mark.parametrize(("phase", "wanted"), [("Complete", 0), ("Failed", 1)], ids=["complete", "failed"])
def test_a_run_that_has_ended_ends_the_watch_with_its_verdict(
    atoll_on: Call, phase: str, wanted: int, watch: tuple[str, ...]
) -> None:
    ended, out, _ = atoll_on([run("r", phase=phase, message="out of time")], "status", "r", *watch)
    assert ended == wanted
    assert out.startswith(f"r: {phase} ·")
    assert "out of time" in out


def test_json_has_the_run_and_its_units(atoll_on: Call) -> None:
    evaluation = {"step": 100, "loss": 2.75, "tokens": 4096}
    items = [
        run("r", phase="Running", globalStep=120, tokensPerSecond=5.5, evaluation=evaluation),
        unit("r-a-0", "r", phase="Learning", lastHealSeconds=8.5, lastHeal={"stages": {"catchUp": 1.5}}),
        unit("else-a-0", "else"),
    ]
    ended, out, _ = atoll_on(items, "status", "r", "--json")
    shown = json.loads(out)
    assert ended == 0
    assert out.count("\n") == 1
    assert shown["run"]["name"] == "r"
    assert shown["run"]["tokensPerSecond"] == 5.5
    assert shown["run"]["heldOut"] == evaluation
    assert (shown["run"]["step"], shown["run"]["target"], shown["run"]["failed"]) == (120, 300, False)
    assert list(shown["units"]) == ["r-a-0"]
    assert shown["units"]["r-a-0"]["healSeconds"] == 8.5
    assert shown["units"]["r-a-0"]["healStages"] == {"catchUp": 1.5}


STAGES = {"schedule": 0.0, "pull": 1.25, "start": 5.0, "restore": 2.0, "compile": 12.0, "catchUp": 0.75}
COSTS = {
    "Hang": {"failures": 1, "seconds": 4.0, "chipSeconds": 16.0, "steps": 1},
    "NodeLost": {"failures": 2, "seconds": 185.0, "chipSeconds": 1480.0, "steps": 370},
}
RUN = run(
    "r", phase="Running", message="two of three", unitsSummary="2/3", globalStep=120, tokensPerSecond=12345.0,
    loss=2.5, quorum="2/3 (K=1)", bytesIn=2_000_000, bytesOut=900, checkpoint={"step": 100},
    evaluation={"step": 100, "tokens": 65_536, "split": "heldout", "loss": 2.5}, lost={"byReason": COSTS},
)  # fmt: skip
SLOW = "steps of 7200 s, more than 4 × the median of 1 s"
UNITS = [
    unit("r-a-2", phase="Failed"),
    unit(
        "r-a-1", phase="Learning", incarnation=2, step=130, restartCount=1, lastHealSeconds=8.25,
        lastHeal={"stages": STAGES}, conditions=[LEARNING | {"reason": "SlowSteps", "message": SLOW}],
    ),
    unit(
        "r-a-0", lastHealSeconds=3.0, lastHeal={"stages": {"schedule": 2.0}}, step=140, loss=2.25,
        link={"upGbps": 2.5, "downGbps": 12.34, "rttSeconds": 0.0421, "busyShare": 0.63, "failures": 2,
              "codec": "int4", "period": 2.5},
        conditions=[LEARNING | {"reason": "Merged", "message": "as it should be"}],
    ),
]  # fmt: skip


def test_a_run_is_shown_with_its_figures_its_units_their_heals_and_what_failures_cost(atoll_on: Call) -> None:
    _, out, _ = atoll_on([RUN, *UNITS], "status", "r")
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "r: Running · units 2/3 · step 120/300 · 12.3 k tokens/s · loss 2.500 · quorum 2/3 (K=1) · "
        "in 2.0 MB out 900 B",
        "two of three",
        "newest checkpoint: global step 100",
        "held-out loss: 2.5000 at global step 100, over 65,536 tokens",
        "UNIT PHASE INCARNATION STEP LOSS TOKENS/S RESTARTS LAST HEAL CODEC",
        "r-a-0 Pending 0 140 2.250 0 0 3.0 s int4 1/2.5",
        "r-a-1 Learning 2 130 - 0 1 8.2 s -",
        "r-a-2 Failed 0 0 - 0 0 - -",
        f"r-a-1: {SLOW}",
        "r-a-0 healed in 3.0 s: schedule 2.0 s",
        "r-a-1 healed in 8.2 s: schedule 0.0 s, pull 1.2 s, start 5.0 s, restore 2.0 s, compile 12 s, "
        "catch up 0.8 s",
        "lost to NodeLost: 2 failures, 3 min 05 s, 1,480 chip-seconds, 370 steps",
        "lost to Hang: 1 failure, 4.0 s, 16 chip-seconds, 1 step",
    ]


def test_the_wide_table_shows_pool_seed_and_the_link_of_a_unit_once_it_is_known(atoll_on: Call) -> None:
    _, out, _ = atoll_on([run("r"), *UNITS, unit("r-a-3", seededStep=7)], "status", "r", "-o", "wide")
    head, *rows = (line.split() for line in out.splitlines() if line.startswith(("UNIT", "r-a-")))
    assert " ".join(head).endswith("CODEC POOL SEEDED FROM LINK UP/DOWN GBIT/S ROUND TRIP BUSY BROKEN")
    assert rows[0][-7:] == ["a", "-", "2.5/12.3", "42.1", "ms", "63%", "2"]
    assert rows[3][-6:] == ["a", "7", "-", "-", "-", "-"]


PODS = {
    "r-a-0-1-1": {"atoll.dev/unit": "r-a-0"},
    "r-a-0-1-0": {"atoll.dev/unit": "r-a-0"},
    "r-syncer-0": {"atoll.dev/component": "syncer"},
}
STRANGER = {"kind": "Pod", "metadata": {"name": "other", "uid": "u2"}, "spec": {}}


def test_a_sample_has_the_objects_of_one_run_and_comes_back_from_its_record() -> None:
    pods = [pod(name, 0, **labels) for name, labels in PODS.items()]
    for of in (RUN, run("r", evaluation={"step": 1})):
        sample = sample_of("r", [of, *UNITS, unit("else-0", "else"), *pods, STRANGER], 7.0)
        assert set(sample.units) == {"r-a-0", "r-a-1", "r-a-2"} and set(sample.pods) == set(PODS)
        assert [each.name for each in sample.pods_of("r-a-0")] == ["r-a-0-1-0", "r-a-0-1-1"]
        assert Sample.from_record(json.loads(json.dumps(asdict(sample)))) == sample


def test_a_held_out_loss_may_be_no_number() -> None:
    told = held_out(HeldOutView(step=100, tokens=65_536))
    assert told == "held-out loss: not finite at global step 100, over 65,536 tokens"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (7.25, "7.2 s"), (42.4, "42 s"), (119.7, "2 min 00 s"), (185, "3 min 05 s")],
)
def test_seconds_are_readable(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_without_a_run_there_is_a_line_for_each(atoll_on: Call, kubectl: Path) -> None:
    items = [
        run("small", "b", phase="Failed"),
        run(
            "large", "b", phase="Running", unitsSummary="5/6", globalStep=120, loss=2.5, tokensPerSecond=12e3
        ),
        run("zebra", "a"),
    ]
    ended, out, _ = atoll_on(items, "status", "-A")
    assert ended == 0
    assert [line.split() for line in out.splitlines()] == [
        ["NAMESPACE", "RUN", "PHASE", "UNITS", "STEP", "TOKENS/S", "LOSS"],
        ["a", "zebra", "Pending", "-", "0/300", "0", "-"],
        ["b", "large", "Running", "5/6", "120/300", "12.0", "k", "2.500"],
        ["b", "small", "Failed", "-", "0/300", "0", "-"],
    ]
    assert json.loads((kubectl / "calls").read_text()) == ["get", "trainingruns", "-A", "-o", "json"]
    wide = atoll_on(items, "status", "-A", "-o", "wide")[1].splitlines()[0]
    assert wide.split()[-3:] == ["QUORUM", "CHECKPOINT", "MESSAGE"]


def test_the_list_as_json_names_namespaces(atoll_on: Call) -> None:
    _, out, _ = atoll_on([run("one", "b"), run("one", "a")], "status", "--json")
    assert [(each["namespace"], each["name"]) for each in json.loads(out)["runs"]] == [
        ("a", "one"),
        ("b", "one"),
    ]
    assert json.loads(atoll_on([], "status", "--json")[1]) == {"runs": []}


def test_a_watch_outlives_an_answer_that_does_not_come(
    call: Call, monkeypatch: pytest.MonkeyPatch, kubectl: Path
) -> None:
    calls = kubectl / "calls"
    for phase in ("Running", "Failed"):
        (kubectl / phase).write_text(json.dumps({"items": [run("r", phase=phase)]}))
    (kubectl / "kubectl").write_text(
        f"#!/bin/sh\necho x >> {calls}\n"
        f"case $(wc -l < {calls}) in\n"
        f"  1) cat {kubectl / 'Running'};;\n"
        "  2|3) echo 'net/http: TLS handshake timeout' >&2; exit 1;;\n"
        f"  *) cat {kubectl / 'Failed'};;\n"
        "esac\n"
    )
    monkeypatch.setattr("atoll_cli.polling.INTERVAL", 0.001)
    ended, out, err = call("status", "r", "--watch", "--json", commands="atoll_cli.options")
    assert ended == 1
    assert [json.loads(line)["run"]["phase"] for line in out.splitlines()] == ["Running", "Failed"]
    assert err == (
        "atoll: kubectl get trainingruns,learnerunits -o json failed: net/http: TLS handshake timeout; "
        "asking again for 15 min 00 s\n"
    )


METRICS = """# TYPE atoll_syncer_global_step gauge
atoll_syncer_global_step {step}
atoll_syncer_merged_tokens_total 5e3
atoll_syncer_unit_step{{unit="r-p-0"}} {step}
atoll_syncer_token_fragments{{unit="r-p-0",fate="merged"}} 7
"""


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([40, 38], (38, 5000, 40), id="all-shards"),
        pytest.param([40, None], (30, 4000, 40), id="one-is-silent"),
        pytest.param([20, 20], (30, 5000, 33), id="never-behind-the-status"),
        pytest.param([None, None], (30, 4000, 33), id="no-right-to-read-them"),
    ],
)
def test_figures_of_a_running_run_are_those_of_its_syncer_now(
    atoll_on: Call, kubectl: Path, answers: list[int | None], expected: tuple[int, int, int]
) -> None:
    for shard, step in enumerate(answers):
        if step is not None:
            (kubectl / f"shard-{shard}").write_text(METRICS.format(step=step))
    items = [
        run("r", phase="Running", globalStep=30, tokens=4000, syncerShards=2),
        unit("r-p-0", "r", step=33),
    ]
    _, out, _ = atoll_on(items, "status", "r", "--json")
    shown = json.loads(out)
    assert (shown["run"]["step"], shown["run"]["tokens"], shown["units"]["r-p-0"]["step"]) == expected
