"""Files of the repository that people and other programs read: they parse, what they name exists, and what they promise
holds. No module imports itself through others. The size check of `.ci/run` counts files where they belong."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import grimp
import pytest
import size
import yaml

from atoll_operator.api.common import ACCELERATORS
from atoll_operator.api.sections import Pool

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("atoll_operator", "atoll_runtime", "atoll_local", "atoll_cli", "atoll_bench")


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


def test_the_machine_types_topologies_and_capacities_of_a_pool_are_where_the_page_on_gke_says() -> None:
    page = (ROOT / "docs" / "gke.md").read_text()
    (said,) = re.findall(r"^\[Pools\]\((\S+)\) has the machine types and topologies", page, re.MULTILINE)
    file, _, anchor = said.partition("#")
    title = re.compile(rf"^## {anchor}$", re.IGNORECASE | re.MULTILINE)
    table = title.split((ROOT / "docs" / file).read_text())[1].split("\n\n")[0]
    assert [name for name in ACCELERATORS if f"| `{name}`" not in table] == []
    machines = re.findall(r"--machine-type=(\S+?)-\w+ --tpu-topology=(\S+)", page)
    assert machines and all(f"`{family}-" in table and topology in table for family, topology in machines)
    for capacity in get_args(Pool.model_fields["capacity"].annotation):
        assert re.search(rf"^\| `{capacity}`", page, re.MULTILINE), capacity


def test_the_sample_of_a_users_own_image_installs_as_root_and_runs_as_no_root() -> None:
    sample = (ROOT / "manifests" / "samples" / "flax-task.yaml").read_text()
    lines = re.findall(r"^#   ([A-Z]+ .*)$", sample, re.MULTILINE)
    user = ""
    for line in lines:
        if line.startswith("USER "):
            user = line.removeprefix("USER ")
        assert not line.startswith("RUN ") or user == "root", f"{line}: the base's packages are root's"
    assert (lines[0], user) == ("FROM REGISTRY/runtime:TAG", "65532:65532")


def test_nothing_says_to_install_a_distribution_that_is_not_published() -> None:
    places = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/*.yaml")]
    places += (path for package in PACKAGES for path in ROOT.glob(f"*/{package}/**/*.py"))
    wrong = re.compile(r"pip install [^\n]*\batoll(\[|\b)")
    assert [str(place) for place in places if wrong.search(place.read_text())] == []


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert "atoll_cli.text" in imports["atoll_cli.status"]
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_lines_are_counted_by_total_and_area(tmp_path) -> None:
    files = {
        "operator/atoll_operator/a.py": "x = 1\n\n",
        "operator/b.py": "x = 1\n",
        "tests/unit/test_a.py": "x = 1\n",
        "tests/unit/operator/test_b.py": "x = 1\n",
        "tests/schedules/test_operator_c.py": "x = 1\n",
        "tests/control/conftest.py": "x = 1\n",
        "tests/conftest.py": "",
        "docs/conf.py": "x = 1\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert size.measure(tmp_path, [*files, "operator/deleted.py"]) == {
        "product": {"operator": 3},
        "tests": {"conftest": 0, "operator": 3, "unit": 1},
    }


@pytest.mark.parametrize(("lines", "fails"), [(90, False), (102, False), (103, True)])
def test_a_total_fails_when_it_grows_by_more_than_two_percent(lines, fails) -> None:
    recorded = {"product": {"operator": 60, "cli": 40}, "tests": {"unit": 10}}
    now = {"product": {"operator": lines}, "tests": {"unit": 10}}
    messages = size.grown(now, recorded)
    assert bool(messages) == fails
    assert all("product: 103 lines" in message and "100 in docs/size.json" in message for message in messages)
