"""Files of the repository that other programs read: they parse, what they name exists, and what they promise holds."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_every_owned_path_exists_and_has_an_owner() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if not line.startswith("#")]
    assert len(rules) > 5
    for path, *owners in rules:
        assert (ROOT / path.strip("/")).exists(), path
        assert owners and all(owner.startswith("@") and "/" in owner for owner in owners), path


def test_the_chart_tells_artifact_hub_its_licence_and_its_definitions() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "atoll" / "Chart.yaml").read_text())
    told = {key.removeprefix("artifacthub.io/"): value for key, value in chart["annotations"].items()}
    assert told["license"] == "Apache-2.0" and told["operator"] == "true"
    names = {
        path.name.removeprefix("atoll.dev_").removesuffix(".yaml") for path in (ROOT / "crds").glob("atoll*")
    }
    assert {each["name"] for each in yaml.safe_load(told["crds"])} == {f"{name}.atoll.dev" for name in names}


def test_the_quickstart_keeps_every_cut_that_the_demo_evaluates() -> None:
    """Step 0 must still be there at the end."""
    spec = yaml.safe_load((ROOT / "manifests" / "samples" / "quickstart.yaml").read_text())["spec"]
    cuts = spec["target"]["globalSteps"] // spec["checkpoint"]["intervalSteps"] + 1
    assert spec["checkpoint"]["keep"] >= cuts
