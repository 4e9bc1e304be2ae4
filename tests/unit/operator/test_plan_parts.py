"""Names, views of pods, conditions."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_operator.plan.conditions import only_figures
from atoll_operator.plan.pods import names
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.unit.waiting import hindrance

NOW = 1_700_000_000.0


def test_the_longest_names_that_the_api_takes_make_host_names_of_63_characters() -> None:
    unit = names.unit_name("r" * (names.NAMES_LIMIT - 10), "p" * 10, 255)
    assert len(names.pod_name(unit, names.MAX_INCARNATION, 1535)) == 63


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1.5", "", "٣"])
def test_a_number_that_is_none_of_ours_is_taken_for_none(text: str) -> None:
    labels = {"atoll.dev/placement": text, "atoll.dev/host": text}
    pod = view({"metadata": {"name": "p", "labels": labels, "annotations": {"atoll.dev/incarnation": text}}})
    assert (pod.placement, pod.host, pod.incarnation) == (0, 0, 0)


def test_of_several_containers_the_learners_own_counts_wherever_it_stands() -> None:
    ended = {"exitCode": 65, "message": "incarnation 1\nNonFiniteLoss: step 3\n"}
    main = {"name": "main", "state": {"terminated": ended}}
    proxy = {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    killed = {"name": "istio-proxy", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    for statuses in ([proxy, main], [main, proxy], [killed, main]):
        pod = view({"metadata": {"name": "p"}, "status": {"containerStatuses": statuses}})
        assert (pod.exit_code, pod.exit_message, pod.started_at) == (65, "NonFiniteLoss: step 3", None)
    alone = view({"metadata": {"name": "p"}, "status": {"containerStatuses": [killed]}})
    assert (alone.exit_code, alone.exit_reason) == (None, "")


def test_a_pod_that_runs_again_is_hindered_by_nothing_that_was_before() -> None:
    ended = {"exit_code": 64, "exit_reason": "Error", "exit_message": "JournalFailed: x"}
    assert "JournalFailed" in hindrance(PodView(name="p", **ended))
    assert hindrance(PodView(name="p", phase="Running", started_at=NOW, **ended)) == ""


def test_figures_and_messages_of_true_conditions_can_wait() -> None:
    def status(count: int, ready: str = "True", **figures: Any) -> dict[str, Any]:
        learning = {"type": "Learning", "status": ready, "reason": "R", "message": f"{count} merged"}
        return {"phase": "Running", "conditions": [learning], **figures}

    assert only_figures(
        status(1), status(2, step=9, tokens=8, loss=1.0, sharePercent=3, ledger={"trained": 1})
    )
    assert not only_figures(status(1), status(2, ready="False"))
    assert not only_figures(status(1, "False"), status(2, "False"))
    assert not only_figures(status(1), status(1, message="heals"))
    assert not only_figures(status(1), status(1, restartCount=1))
    assert not only_figures(status(1, lastHealSeconds=3.0), status(1))
