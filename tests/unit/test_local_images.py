"""What images are built from, and their parts that this project writes itself."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from atoll_local.base import debian_sources, pip_mounts
from atoll_local.context import write_context
from atoll_local.images import ROLES
from atoll_local.paths import source_root

PROJECT = """\
[project]
name = "x"
version = "1.2.3"

[project.optional-dependencies]
runtime = ["numpy"]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for package in ("operator", "runtime", "local", "cli"):
        (root / package / "code").mkdir(parents=True)
        (root / package / "code" / "module.py").write_text("value = 1\n")
    (root / "images").mkdir()
    (root / "images" / "runtime.Dockerfile").write_text("FROM scratch\n")
    (root / "pyproject.toml").write_text(PROJECT)
    for name in ("README.md", "LICENSE", "NOTICE"):
        (root / name).write_text(f"# {name}\n")
    return root


def key(checkout: Path, tmp_path: Path) -> str:
    return write_context(checkout, "runtime.Dockerfile", tmp_path / "context")


def test_the_key_of_an_image_stays_when_only_times_caches_and_the_readme_change(
    checkout: Path, tmp_path: Path
) -> None:
    before = key(checkout, tmp_path)
    os.utime(checkout / "cli" / "code" / "module.py", (1, 1))
    (checkout / "cli" / "code" / "__pycache__").mkdir()
    (checkout / "cli" / "code" / "__pycache__" / "module.pyc").write_bytes(b"x")
    (checkout / "README.md").write_text("# Other words\n")
    assert write_context(checkout, "runtime.Dockerfile", tmp_path / "elsewhere") == before
    assert len({path.stat().st_mtime for path in (tmp_path / "elsewhere").rglob("*")}) == 1


@pytest.mark.parametrize(
    ("path", "content"),
    [
        pytest.param("runtime/code/module.py", "value = 2\n", id="a source"),
        pytest.param("runtime/code/new.py", "", id="a new empty file"),
        pytest.param("images/runtime.Dockerfile", "FROM other\n", id="the Dockerfile"),
        pytest.param("images/runtime.lock", "numpy==3\n", id="a pinned version"),
        pytest.param("pyproject.toml", PROJECT.replace("numpy", "numpy<3"), id="a dependency"),
    ],
)
def test_the_key_of_an_image_changes_with_what_it_is_built_from(
    checkout: Path, tmp_path: Path, path: str, content: str
) -> None:
    before = key(checkout, tmp_path)
    (checkout / path).write_text(content)
    assert key(checkout, tmp_path) != before


def locked(name: str) -> dict[str, str]:
    """Pinned versions in one lock file, by package."""
    text = (source_root() / "images" / f"{name}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", text, re.MULTILINE))


LOCKS = {"operator": ["operator"], "runtime": ["runtime"], "runtime,tpu": ["runtime", "tpu"], "build": []}
"""Lock files, and the extras that each pins."""


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_what_the_project_asks_for_with_hashes_and_no_address(name: str) -> None:
    text, pinned = (source_root() / "images" / f"{name}.lock").read_text(), locked(name)
    project = tomllib.loads((source_root() / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *(line for extra in LOCKS[name] for line in extras[extra])]
    if name == "build":
        asked = project["build-system"]["requires"]
    for line in asked:
        wanted = Requirement(line)
        version = pinned.get(canonicalize_name(wanted.name))
        assert version is not None and wanted.specifier.contains(version), f"{line}: make lock"
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text


@pytest.mark.parametrize("role", ["operator", "runtime"])
def test_dockerfiles_run_as_no_root_and_name_no_mirror(role: str) -> None:
    text = (source_root() / "images" / f"{role}.Dockerfile").read_text()
    assert "USER 65532:65532" in text
    assert "http" not in text


def test_the_runtimes_image_can_use_a_tpu_unless_it_is_built_for_this_machine_and_the_operators_has_no_jax() -> (
    None
):
    text = (source_root() / "images" / "runtime.Dockerfile").read_text()
    assert "\nARG EXTRAS=runtime,tpu\n" in text and "images/${EXTRAS}.lock" in text
    local, tpu = locked(ROLES["runtime"]["EXTRAS"]), locked("runtime,tpu")
    assert tpu.keys() - local.keys() == {"libtpu"}
    assert {name: tpu[name] for name in local} == local
    assert not ROLES["operator"] and not [name for name in locked("operator") if name.startswith("jax")]


def test_the_base_comes_from_this_hosts_mirror_of_the_suite_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    ours = "Types: deb\nURIs: mirror\nSuites: bookworm bookworm-updates\nComponents: main"
    vendor = "Types: deb\nURIs: vendor\nSuites: bookworm\nComponents: stable\n"
    (folder / "a.sources").write_text(f"# ours\n{ours}\n\nTypes: deb\nURIs: other\nSuites: sid\n")
    (folder / "b.sources").write_text(vendor)
    assert debian_sources(tmp_path) == f"# ours\n{ours}\n\n"


def test_what_pip_needs_of_this_machine_is_mounted_under_paths_that_tell_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "my-wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    with pip_mounts() as options:
        mounts = dict(option.removeprefix("--volume=").split(":")[:2] for option in options)
        config = next(source for source, target in mounts.items() if target == "/etc/pip.conf")
        text = Path(config).read_text()
        assert str(wheels) not in text
        assert f"find-links = {mounts[str(wheels)]}" in text
        assert mounts[str(wheels)].startswith("/run/pip/")
    assert not Path(config).exists()
