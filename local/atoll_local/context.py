"""The build context of an image, and a key of its content."""

from __future__ import annotations

import hashlib
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("operator", "runtime", "local", "cli")
TIME = 1580601600
"""The time of every file in an image: 2020-02-02, as in hatchling's wheels. It is fixed so that the image's digest does
not depend on the time of the build."""


def version(root: Path) -> str:
    """The project's version, which tags its images."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def write_context(root: Path, dockerfile: str, folder: Path) -> str:
    """Copies the context of `dockerfile` into `folder`, and returns the key of its content."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("")  # the wheel needs one; changes of it must not rebuild images
    for name in ("LICENSE", "NOTICE", "pyproject.toml"):
        shutil.copy(root / name, folder)
    shutil.copy(root / "images" / dockerfile, folder / "Dockerfile")
    shutil.copytree(root / "images", folder / "images", ignore=shutil.ignore_patterns("*.Dockerfile"))
    for package in PACKAGES:
        skip = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
        shutil.copytree(root / package, folder / package, ignore=skip)
    digest = hashlib.sha256()
    for path in _walk(folder):
        os.utime(path, (TIME, TIME))
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _walk(folder: Path) -> Iterator[Path]:
    """All files and folders below, in a fixed order; children before their folder."""
    yield from sorted(folder.rglob("*"), reverse=True)
