"""krew's manifest and archive of the plugin, as the release makes them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from commands import ended, executable

ROOT = Path(__file__).resolve().parents[2]
RELEASES = "https://example.invalid/atoll/releases"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    subprocess.run([str(ROOT / ".krew/release"), "1.2.3", RELEASES, str(tmp_path)], check=True, timeout=60)
    return tmp_path


def test_the_manifest_is_what_krew_takes(release: Path) -> None:
    """The rules of krew's `internal/index/validation`, for v1alpha2."""
    plugin = yaml.safe_load((release / "atoll.yaml").read_text())
    assert (plugin["apiVersion"], plugin["kind"]) == (
        "krew.googlecontainertools.github.com/v1alpha2",
        "Plugin",
    )
    assert re.fullmatch(r"[\w-]+", plugin["metadata"]["name"])
    spec = plugin["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[\w.]+)?", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50 and "\n" not in spec["shortDescription"]
    archive = release / "kubectl-atoll.tar.gz"
    for platform in spec["platforms"]:
        [choice] = platform["selector"]["matchExpressions"]
        assert choice["key"] == "os" and set(choice["values"]) == {"linux", "darwin"}
        assert platform["uri"] == f"{RELEASES}/download/v1.2.3/kubectl-atoll.tar.gz"
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        with tarfile.open(archive) as files:
            assert {file["from"] for file in platform["files"]} == set(files.getnames())
            assert files.getmember(platform["bin"]).mode & 0o111
    assert not re.search("VERSION|RELEASES|SHA256", (release / "atoll.yaml").read_text())


def test_two_releases_of_one_version_are_the_same_bytes(release: Path, tmp_path: Path) -> None:
    before = (release / "kubectl-atoll.tar.gz").read_bytes()
    subprocess.run([str(ROOT / ".krew/release"), "1.2.3", RELEASES, str(tmp_path)], check=True, timeout=60)
    assert (release / "kubectl-atoll.tar.gz").read_bytes() == before


def test_the_program_passes_its_arguments_to_the_package_of_its_version(release: Path) -> None:
    with tarfile.open(release / "kubectl-atoll.tar.gz") as files:
        files.extractall(release, filter="data")
    executable(release / "uvx", 'echo "$@"')
    path = {"PATH": f"{release}:/usr/bin:/bin"}
    done = ended(release / "kubectl-atoll", "status", "-n", "a b", environment=path)
    assert done.stdout == "--from atoll==1.2.3 kubectl-atoll status -n a b\n"
