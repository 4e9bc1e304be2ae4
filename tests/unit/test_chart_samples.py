"""The samples say what the runtime understands; a test on a real API server applies them besides."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from atoll_runtime import contract

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "manifests" / "samples").glob("*.yaml"))
SECTIONS: dict[str, type[BaseModel]] = {
    "model": contract.ModelSpec,
    "data": contract.DataSpec,
    "inner": contract.InnerSpec,
    "outer": contract.OuterSpec,
    "quorum": contract.QuorumSpec,
    "target": contract.TargetSpec,
    "checkpoint": contract.CheckpointSpec,
}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_section_of_a_sample_is_one_of_the_contract(path: Path) -> None:
    spec = yaml.safe_load(path.read_text())["spec"]
    for name, section in SECTIONS.items():
        section.model_validate(spec.get(name, {}), strict=False)
    assert spec["model"]["preset"] in contract.PRESETS


def test_the_quickstart_keeps_every_cut_that_the_demo_evaluates() -> None:
    """Step 0 must still be there at the end."""
    path = next(path for path in SAMPLES if path.stem == "quickstart")
    spec = yaml.safe_load(path.read_text())["spec"]
    cuts = spec["target"]["globalSteps"] // spec["checkpoint"]["intervalSteps"] + 1
    assert spec["checkpoint"]["keep"] >= cuts
