"""`atoll bench journal`: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from atoll_cli.__main__ import main
from atoll_runtime.syncer import journal as journals
from atoll_runtime.syncer import room


def test_a_figure_has_the_times_of_merges_and_of_the_steps_in_which_segments_are_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(room, "LEAST_GROWTH", 1 << 20)
    monkeypatch.setattr(journals, "STEP", 1 << 20)  # the tests of schedules have it smaller
    assert main(["bench", "journal", "--json", "--megabytes", "1", "--merges", "200"]) == 0
    (figure,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert figure["figure"] == "journal_milliseconds" and figure["segments"] >= 1
    assert 0 < figure["step"] <= figure["step_p99"] <= figure["step_most"]
    assert min(figure["snapshot"], figure["merge"]) > 0


def test_a_snapshot_that_does_not_fit_is_refused_with_what_it_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "journal", "--megabytes", "1000000", "--merges", "1"]) == 1
    assert "the journal of 124999999992 parameters needs" in capsys.readouterr().err
