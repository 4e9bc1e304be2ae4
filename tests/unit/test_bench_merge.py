"""`atoll bench merge`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atoll_bench.merge import layout_of
from atoll_cli.__main__ import main
from atoll_runtime.protocol.fragments import TensorInfo, build_layout


def test_a_figure_has_the_speed_of_merge_and_copy_and_the_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = [TensorInfo("layers", (6, 5000), stacked=True, embedding=False)]
    monkeypatch.setattr("atoll_bench.merge.layout_of", lambda _, fragments: build_layout(tensors, fragments))
    monkeypatch.setattr("atoll_bench.merge.COLD", 1 << 20)
    command = ["bench", "merge", "--json", "--learners", "2,3", "--fragments", "3"]
    assert main(command) == 0
    figures: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(figure["codec"], figure["learners"]) for figure in figures] == [
        ("bf16", 2),
        ("bf16", 3),
        ("float32", 2),
        ("float32", 3),
    ]
    for figure in figures:
        assert figure["figure"] == "merge_bytes_per_second"
        assert figure["parameters"] == 30_000
        assert figure["ratio_spread"][0] <= figure["ratio"] <= figure["ratio_spread"][1]
        assert min(figure["value"], figure["copy"]) > 0


def test_the_model_has_at_least_the_parameters_that_were_asked_for() -> None:
    layout = layout_of(64_000_000, 24)
    assert 64_000_000 <= layout.size < 71_000_000
    sizes = [fragment.size for fragment in layout.fragments]
    assert max(sizes) <= 4 / 3 * layout.size / 24
