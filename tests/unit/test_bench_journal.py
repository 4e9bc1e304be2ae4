"""`atoll bench journal`: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from atoll_cli.__main__ import main


def test_a_figure_has_the_times_of_merges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "journal", "--json", "--megabytes", "1", "--merges", "20"]) == 0
    (figure,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert figure["figure"] == "journal_milliseconds" and figure["begin"] > 0
    assert 0 < figure["merge"] <= figure["merge_p99"] <= figure["merge_most"]


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "journal", "--megabytes", "1000000", "--merges", "1"]) == 1
    assert "the journal of 124999999992 parameters needs" in capsys.readouterr().err
