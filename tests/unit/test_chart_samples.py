"""The samples say what the runtime understands; a test on a real API server applies them besides."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_runtime.contract import PRESETS

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "manifests" / "samples").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_is_a_run_that_operator_and_runtime_understand(path: Path) -> None:
    spec = TrainingRunSpec.model_validate(yaml.safe_load(path.read_text())["spec"])
    assert spec.model.task is not None or spec.model.preset in PRESETS


def test_the_quickstart_keeps_every_cut_that_the_demo_evaluates() -> None:
    """Step 0 must still be there at the end."""
    path = next(path for path in SAMPLES if path.stem == "quickstart")
    spec = yaml.safe_load(path.read_text())["spec"]
    cuts = spec["target"]["globalSteps"] // spec["checkpoint"]["intervalSteps"] + 1
    assert spec["checkpoint"]["keep"] >= cuts
