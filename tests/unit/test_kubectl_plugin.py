"""`kubectl atoll`: what some of its commands write, print and complete. test_cli_table covers all commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from played_kubectl import RUN, UNIT, Call, pod

from atoll_cli.plugin.completion import execute as complete
from atoll_cli.plugin.logs import AT_ONCE, LOOKS

CHANGES = {
    "suspend r": {"spec": {"suspend": True}},
    "resume r": {"spec": {"suspend": False}},
    "scale r --units 4": {"spec": {"units": 4}},
    "checkpoint r": {"metadata": {"annotations": {"atoll.dev/checkpoint": "40"}}},
    "heal r-a-0": {"metadata": {"annotations": {"atoll.dev/heal": "3"}}},
    "drain r-a-0": {"metadata": {"annotations": {"atoll.dev/drain": "3"}}},
}
"""Commands, and what they write."""


OF_UNIT = {"atoll.dev/unit": "r-a-0"}
FINISHED = {**UNIT, "status": {**UNIT["status"], "phase": "Finished"}}


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize("command", CHANGES)
def test_a_change_is_one_patch_of_the_object(call: Call, kubectl: Path, command: str) -> None:
    status, out, _ = call(*command.split())
    [patch] = [each for each in calls(kubectl) if each[0] == "patch"]
    assert status == 0 and json.loads(patch[patch.index("-p") + 1]) == CHANGES[command]
    assert {"--type=merge", "--field-manager=kubectl-atoll"} <= set(patch)
    name = "learnerunit.atoll.dev/r-a-0" if "r-a-0" in command else "trainingrun.atoll.dev/r"
    assert out.startswith(f"{name} ")
    assert call(*command.split(), "-o", "name")[1] == f"{name}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["status", "lu/r"], 2, "'lu/r': NAME or trun/NAME is wanted"),
        (["heal", "trun/r"], 2, "'trun/r': NAME or lu/NAME is wanted"),
        (["suspend", "trun/"], 2, "'trun/': NAME or trun/NAME is wanted"),
        (["logs", ""], 2, "'': NAME or lu/NAME is wanted"),
        (["logs", "syncer", ""], 2, "'': NAME or trun/NAME is wanted"),
        (["scale", "r", "--units", "-1"], 2, "--units -1: 0 or more is wanted"),
        (["status", "r", "-w", "-o", "yaml"], 2, "--watch goes with"),
        (["scale", "r"], 2, "--units"),
        (["nothing"], 2, "invalid choice"),
    ],
)
def test_wrong_usage_is_status_2(call: Call, arguments: list[str], status: int, told: str) -> None:
    ended, out, err = call(*arguments)
    assert (ended, out) == (status, "") and told in err


def test_names_are_those_of_kubectl(call: Call) -> None:
    assert call("status", "r", "-o", "name")[1] == "trainingrun.atoll.dev/r\nlearnerunit.atoll.dev/r-a-0\n"
    assert call("status", "-o", "name")[1] == "trainingrun.atoll.dev/r\n"


def test_top_has_the_fastest_unit_first(call: Call, kubectl: Path) -> None:
    slow = {**UNIT, "status": {**UNIT["status"], "tokensPerSecond": 5.0}}
    fast = {**UNIT, "metadata": {"name": "r-b-0"}, "status": {**UNIT["status"], "tokensPerSecond": 9.0}}
    (kubectl / "objects").write_text(json.dumps([RUN, slow, fast]))
    assert [line.split()[0] for line in call("top", "r")[1].splitlines()] == ["UNIT", "r-b-0", "r-a-0"]


@pytest.mark.parametrize(
    ("arguments", "pods"),
    [
        (["logs", "r-a-0"], {"r-a-0-3-0"}),
        (["logs", "r-a-0", "--all-hosts"], {"r-a-0-3-0", "r-a-0-3-1"}),
        (["logs", "syncer", "trun/r"], {"r-syncer-0"}),
        (["logs", "operator"], {"atoll-operator-x"}),
    ],
)
def test_logs_are_of_the_pods_that_were_asked_for(call: Call, arguments: list[str], pods: set[str]) -> None:
    assert set(call(*arguments)[1].splitlines()) == {f"log of {name}" for name in pods}


def test_a_followed_log_goes_on_with_the_next_incarnation_until_the_unit_is_finished(
    call: Call, kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_cli.plugin.logs.back_off", lambda looks, chance: 0.01)
    healed = pod("r-a-0-4-0", 0, **OF_UNIT)
    (kubectl / "after-1").write_text(json.dumps([RUN, UNIT, healed]))
    (kubectl / "after-2").write_text(json.dumps([RUN, FINISHED]))
    status, out, err = call("logs", "r-a-0", "-f")
    assert (status, out, err) == (0, "log of r-a-0-3-0\nlog of r-a-0-4-0\n", "")
    assert all("-f" in words for words in calls(kubectl) if words[0] == "logs")


def test_a_followed_log_begins_when_the_container_does(
    call: Call, kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, runs = (pod("r-a-0-3-0", 0, state, **OF_UNIT) for state in ("waiting", "running"))
    course = iter([[RUN, UNIT, waits], [RUN, UNIT, runs], [RUN, FINISHED]])

    def go_on(*_: object) -> float:
        (kubectl / "objects").write_text(json.dumps(next(course)))
        return 0.01

    monkeypatch.setattr("atoll_cli.plugin.logs.back_off", go_on)
    go_on()
    assert call("logs", "r-a-0", "-f") == (0, "log of r-a-0-3-0\n", "")
    looked = [words[0] for words in calls(kubectl) if {"logs", "pods"} & {*words}]
    assert looked == ["get", "get", "logs", "get"]


def test_a_container_that_does_not_start_is_waited_for_once(
    call: Call, kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_cli.plugin.logs.back_off", lambda looks, chance: 0.0)
    (kubectl / "objects").write_text(json.dumps([RUN, UNIT, pod("r-a-0-3-0", 0, "waiting", **OF_UNIT)]))
    call("logs", "r-a-0", "-f")
    assert sum("pods" in words for words in calls(kubectl)) == LOOKS + 1


def test_the_logs_of_many_hosts_are_all_read(call: Call, kubectl: Path) -> None:
    pods = [pod(f"r-a-0-3-{host}", host, **OF_UNIT) for host in range(AT_ONCE + 6)]
    (kubectl / "objects").write_text(json.dumps([RUN, UNIT, *pods]))
    status, out, _ = call("logs", "r-a-0", "--all-hosts")
    assert status == 0
    assert sorted(out.splitlines()) == sorted(f"log of {each['metadata']['name']}" for each in pods)


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["sus"], ["suspend"]),
        (["heal", ""], ["r-a-0"]),
        (["heal", "lu/"], ["lu/r-a-0"]),
        (["logs", ""], ["operator", "r-a-0", "syncer"]),
        (["logs", "syncer", ""], ["r"]),
        (["status", "-n", "ml", "trun/"], ["trun/r"]),
        (["status", "r", "-o", "j"], ["json"]),
        (["status", "-o", "json", ""], ["r"]),
        (["scale", "--units", "3", ""], ["r"]),
        (["suspend", "r", ""], []),
        (["scale", "r", "--u"], ["--units"]),
        (["plan", "--link"], ["--link-gbps"]),
        (["plan", "x.yaml", "-o", ""], ["json"]),
    ],
)
def test_completion_knows_commands_flags_runs_and_units(
    kubectl: Path, capsys: pytest.CaptureFixture[str], words: list[str], candidates: list[str]
) -> None:
    assert complete(words) == 0
    assert capsys.readouterr().out.splitlines() == [*candidates, ":4"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["status", "--context", "B", "-n", ""], ["--context=B", "get", "namespaces"]),
        (["heal", "--namespace=ml", "--context=B", ""], ["--context=B", "--namespace=ml", "get"]),
        (["heal", "-n", "ml", ""], ["--namespace=ml", "get", "learnerunits.atoll.dev"]),
    ],
)
def test_completion_asks_the_cluster_and_the_namespace_of_the_command(
    kubectl: Path, words: list[str], told: list[str]
) -> None:
    assert complete(words) == 0
    [asked] = calls(kubectl)
    assert asked[: len(told)] == told


def test_completion_without_a_cluster_says_nothing(kubectl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kubectl / "refusal").write_text("no route")
    assert complete(["heal", ""]) == 0
    assert capsys.readouterr() == (":4\n", "")
