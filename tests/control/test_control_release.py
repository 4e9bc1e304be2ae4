"""The release workflow, as far as it goes without an account: its own commands, in order, in a copy of the checkout."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import ended

from atoll_local.programs import find

ROOT = Path(__file__).resolve().parents[2]
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
REGISTRY = "registry.example/atoll"
ELSEWHERE = {".ci/run", "Log in", "Keep the digest", "Join the architectures under the version", "Sign"}
"""Steps that need a registry, a machine of their own, or the identity of a workflow's run."""
NOTE = '#!/bin/sh\necho "$(basename "$0") $*" >> "$NOTES"\n'
HELM = '#!/bin/sh\nif [ "$1" = push ]; then echo "Digest: sha256:0af1"; else exec "$HELM" "$@"; fi\n'
DOCKER = f"""#!/bin/sh
case "$*" in "buildx imagetools inspect {REGISTRY}/runtime:"*) echo sha256:{"2" * 64};; *) echo sha256:{"1" * 64};; esac
"""
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]  # type: ignore[index]
VALUES = {
    "github.server_url": "https://example.invalid",
    "github.repository": "atoll",
    "github.token": "none",
    "needs.check.outputs.version": VERSION,
}
"""Of the expressions in the workflow."""
CPU_SECONDS, MEGABYTES = 20, 30
"""At most, to install the command line alone. CPU time, because other work shares the machine of a test: 9 s on a quiet
one, and more where its cores are shared."""


def commands(job: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name, script and environment of the steps that can be run here."""
    for step in JOBS[job]["steps"]:
        name = step.get("name", step.get("run", ""))
        if "run" in step and not any(each in name for each in ELSEWHERE):
            told = {key: str(value) for key, value in step.get("env", {}).items()}
            yield name, step["run"], {key: _filled(value) for key, value in told.items()}


def _filled(text: str) -> str:
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: VALUES[found[1]], text)


class Checkout:
    """A copy of the checkout, as a release finds it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes = folder / "atoll", folder / "notes"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in listed.decode().strip("\0").split("\0"):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes((ROOT / name).read_bytes())
                (self.folder / name).chmod((ROOT / name).stat().st_mode)
        changes = self.folder / "CHANGELOG.md"
        changes.write_text(changes.read_text().replace("## [Unreleased]", f"## [{VERSION}] - 2026-12-01", 1))
        (folder / "bin").mkdir()
        for name, text in {"helm": HELM, "docker": DOCKER, "pip": NOTE, "gh": NOTE}.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self._environment = {
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HELM": str(find("helm")),
            "NOTES": str(self.notes),
            "REGISTRY": REGISTRY,
            "GITHUB_REF_NAME": f"v{VERSION}",
            "GITHUB_OUTPUT": str(folder / "output"),
        }

    def run(self, job: str) -> list[str]:
        """Run a job's steps; their names."""
        done = []
        for name, script, environment in commands(job):
            step = ended(
                *("bash", "-eo", "pipefail", "-c", script),
                environment={**self._environment, **environment},
                cwd=self.folder,
                timeout=300,
            )
            assert step.returncode == 0, f"{name}: {step.stdout}{step.stderr}"
            done.append(name)
        return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def wheel(checkout: Checkout) -> Path:
    checkout.run("python")
    [found] = (checkout.folder / "dist").glob("*.whl")
    return found


def test_a_tag_that_agrees_with_project_chart_and_changelog_is_released(checkout: Checkout) -> None:
    assert len(checkout.run("check")) == 1
    assert (checkout.folder.parent / "output").read_text() == f"version={VERSION}\n"
    chart = checkout.folder / "charts" / "atoll" / "Chart.yaml"
    before = chart.read_text()
    chart.write_text(before.replace(f"version: {VERSION}", "version: 9.9.9", 1))
    with pytest.raises(AssertionError, match="The tag, the project"):
        checkout.run("check")
    chart.write_text(before)


def test_the_archive_of_sources_makes_the_same_wheel_which_holds_every_package(
    wheel: Path, checkout: Checkout, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as files:
        held = set(files.namelist())
    for package in ("operator", "runtime", "local", "cli", "bench"):
        ours = (ROOT / package / f"atoll_{package}").rglob("*.*")
        names = {str(path.relative_to(ROOT / package)) for path in ours if "__pycache__" not in path.parts}
        assert names and names <= held
    [archive] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    assert ended(*command, "--directory", tmp_path / "again", cwd=folder, timeout=120).returncode == 0
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_command_line_alone_installs_fast_and_small_and_without_jax(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < CPU_SECONDS
    [packages] = environment.glob("lib/python*/site-packages")
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < MEGABYTES * 1e6
    heavy = {"jax", "numpy", "grpc", "kopf", "kubernetes"}
    assert not heavy & {path.name for path in packages.iterdir()}

    programs = environment / "bin"
    assert ended(programs / "atoll", "version").stdout == f"atoll {VERSION}\n"
    assert ended(programs / "kubectl-atoll", "status", "--help").returncode == 0
    lacking = ended(programs / "atoll", "try")
    assert lacking.returncode == 2 and "[runtime,local]" in lacking.stderr and lacking.stderr.count("\n") == 1


def test_the_chart_names_the_images_of_the_release(checkout: Checkout, tmp_path: Path) -> None:
    assert len(checkout.run("chart")) == 1
    with tarfile.open(checkout.folder / "out" / f"atoll-{VERSION}.tgz") as files:
        files.extractall(tmp_path, filter="data")
    values = yaml.safe_load((tmp_path / "atoll" / "values.yaml").read_text())
    images = {"operator": values["image"], "runtime": values["runtime"]["image"]}
    assert {role: image["repository"] for role, image in images.items()} == {
        role: f"{REGISTRY}/{role}" for role in images
    }
    assert [image["digest"] for image in images.values()] == [f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"]
    assert "digest=sha256:0af1" in (checkout.folder.parent / "output").read_text()


def test_the_release_has_the_plugin_checksums_of_all_files_and_the_changes_of_its_version(
    wheel: Path, checkout: Checkout
) -> None:
    files = checkout.folder / "files"
    files.mkdir()
    (files / wheel.name).write_bytes(wheel.read_bytes())
    assert len(checkout.run("release")) == 3
    sums = dict(reversed(line.split()) for line in (files / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {wheel.name, "kubectl-atoll.tar.gz", "atoll.yaml"}
    for name, digest in sums.items():
        assert hashlib.sha256((files / name).read_bytes()).hexdigest() == digest
    notes = (checkout.folder / "notes.md").read_text()
    assert "### Added" in notes and "\n## " not in notes
    assert f"gh release create v{VERSION} --verify-tag" in checkout.notes.read_text()
