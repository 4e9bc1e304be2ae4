"""The page on GKE and the samples agree with the images, the chart and the API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from atoll_operator.api.common import ACCELERATORS
from atoll_operator.api.sections import Pool

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gke.md").read_text()
FLAX = (ROOT / "manifests" / "samples" / "flax-task.yaml").read_text()


def test_the_machine_types_topologies_and_capacities_of_a_pool_are_where_the_page_says() -> None:
    (said,) = re.findall(r"^\[Pools\]\((\S+)\) has the machine types and topologies", PAGE, re.MULTILINE)
    file, _, anchor = said.partition("#")
    title = re.compile(rf"^## {anchor}$", re.IGNORECASE | re.MULTILINE)
    table = title.split((ROOT / "docs" / file).read_text())[1].split("\n\n")[0]
    assert [name for name in ACCELERATORS if f"| `{name}`" not in table] == []
    machines = re.findall(r"--machine-type=(\S+?)-\w+ --tpu-topology=(\S+)", PAGE)
    assert machines and all(f"`{family}-" in table and topology in table for family, topology in machines)
    for capacity in get_args(Pool.model_fields["capacity"].annotation):
        assert re.search(rf"^\| `{capacity}`", PAGE, re.MULTILINE), capacity


def test_the_sample_of_a_users_own_image_installs_as_root_and_runs_as_no_root() -> None:
    lines = re.findall(r"^#   ([A-Z]+ .*)$", FLAX, re.MULTILINE)
    user = ""
    for line in lines:
        if line.startswith("USER "):
            user = line.removeprefix("USER ")
        assert not line.startswith("RUN ") or user == "root", f"{line}: the base's packages are root's"
    assert (lines[0], user) == ("FROM REGISTRY/runtime:TAG", "65532:65532")


def test_nothing_says_to_install_a_distribution_that_is_not_published() -> None:
    places = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/*.yaml")]
    for package in ("cli", "runtime", "operator", "local", "bench"):
        places += (ROOT / package).rglob("*.py")
    wrong = re.compile(r"pip install [^\n]*\batoll(\[|\b)")
    assert [str(place) for place in places if wrong.search(place.read_text())] == []
