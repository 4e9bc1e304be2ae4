"""`atoll status` with a kubectl on PATH that prints what the test sets: output, JSON and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from played_kubectl import Call


def run(name: str, namespace: str = "default", **status: Any) -> dict[str, Any]:
    ended = {"Complete": "Complete", "Failed": "Failed"}.get(status.get("phase", ""))
    conditions = [{"type": ended, "status": "True"}] if ended else []
    return {
        "kind": "TrainingRun",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"target": {"globalSteps": 300}},
        "status": {"conditions": conditions, **status},
    }


def unit(name: str, of: str, **status: Any) -> dict[str, Any]:
    return {"kind": "LearnerUnit", "metadata": {"name": name}, "spec": {"run": of}, "status": status}


@pytest.fixture
def status(call: Call, kubectl: Path) -> Call:
    """Calls `atoll status` on a cluster with these objects. Returns exit status, output and errors."""

    def ask(items: list[dict[str, Any]], *arguments: str) -> tuple[int, str, str]:
        (kubectl / "objects").write_text(json.dumps(items))
        return call("status", *arguments, commands="atoll_cli.options")

    return ask


@pytest.mark.parametrize("watch", [(), ("-w",)], ids=["once", "watching"])
@pytest.mark.parametrize(("phase", "wanted"), [("Complete", 0), ("Failed", 1)], ids=["complete", "failed"])
def test_a_run_that_has_ended_ends_the_watch_with_its_verdict(
    status: Call, phase: str, wanted: int, watch: tuple[str, ...]
) -> None:
    ended, out, _ = status([run("r", phase=phase, message="out of time")], "r", *watch)
    assert ended == wanted
    assert out.startswith(f"r: {phase} ·")
    assert "out of time" in out


def test_without_a_kubectl_one_sentence_says_so(
    status: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "none"))
    monkeypatch.delenv("ATOLL_KUBECTL")
    ended, _, err = status([], "r")
    assert ended == 2
    assert (
        err == "atoll: kubectl is not on PATH: install it, or name it with ATOLL_KUBECTL=/path/to/kubectl\n"
    )


def test_json_has_the_run_and_its_units(status: Call) -> None:
    evaluation = {"step": 100, "loss": 2.75, "tokens": 4096}
    items = [
        run("r", phase="Running", globalStep=120, tokensPerSecond=5.5, evaluation=evaluation),
        unit("r-a-0", "r", phase="Learning", lastHealSeconds=8.5, lastHeal={"stages": {"catchUp": 1.5}}),
        unit("else-a-0", "else"),
    ]
    ended, out, _ = status(items, "r", "--json")
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


def test_a_unit_that_does_not_set_the_interval_has_a_line_that_says_why(status: Call) -> None:
    why = "3 contributions merged; steps of 7200 s, more than 4 × the median of 1 s"
    conditions = [
        [{"type": "Learning", "status": "True", "reason": reason, "message": why}]
        for reason in ("SlowSteps", "Merged")
    ]
    units = [unit(f"r-a-{i}", "r", conditions=each) for i, each in enumerate(conditions)]
    _, out, _ = status([run("r", phase="Running"), *units], "r")
    assert [line for line in out.splitlines() if why in line] == [f"r-a-0: {why}"]


def test_without_a_run_there_is_a_line_for_each(status: Call, kubectl: Path) -> None:
    items = [
        run("small", "b", phase="Failed"),
        run(
            "large", "b", phase="Running", unitsSummary="5/6", globalStep=120, loss=2.5, tokensPerSecond=12e3
        ),
        run("zebra", "a"),
    ]
    ended, out, _ = status(items, "-A")
    assert ended == 0
    assert [line.split() for line in out.splitlines()] == [
        ["NAMESPACE", "RUN", "PHASE", "UNITS", "STEP", "TOKENS/S", "LOSS"],
        ["a", "zebra", "Pending", "-", "0/300", "0", "-"],
        ["b", "large", "Running", "5/6", "120/300", "12.0", "k", "2.500"],
        ["b", "small", "Failed", "-", "0/300", "0", "-"],
    ]
    assert json.loads((kubectl / "calls").read_text()) == ["get", "trainingruns", "-A", "-o", "json"]


def test_the_list_as_json_names_namespaces(status: Call) -> None:
    _, out, _ = status([run("one", "b"), run("one", "a")], "--json")
    assert [(each["namespace"], each["name"]) for each in json.loads(out)["runs"]] == [
        ("a", "one"),
        ("b", "one"),
    ]
    assert json.loads(status([], "--json")[1]) == {"runs": []}


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
    status: Call, kubectl: Path, answers: list[int | None], expected: tuple[int, int, int]
) -> None:
    for shard, step in enumerate(answers):
        if step is not None:
            (kubectl / f"shard-{shard}").write_text(METRICS.format(step=step))
    items = [
        run("r", phase="Running", globalStep=30, tokens=4000, syncerShards=2),
        unit("r-p-0", "r", step=33),
    ]
    _, out, _ = status(items, "r", "--json")
    shown = json.loads(out)
    assert (shown["run"]["step"], shown["run"]["tokens"], shown["units"]["r-p-0"]["step"]) == expected
