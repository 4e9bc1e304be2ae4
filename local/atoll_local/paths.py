"""Folders of programs, images and the state of clusters, and locks for changes."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll_local.errors import HostError

NAME = re.compile(r"[a-z0-9][-a-z0-9]{0,30}")
"""Valid names of clusters. A folder and a cgroup of this name are removed, so it must not lead elsewhere."""


def cache_dir() -> Path:
    """Programs and images, kept between runs: `$ATOLL_CACHE`, else the user's cache folder."""
    if chosen := os.environ.get("ATOLL_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "atoll"


def states_dir() -> Path:
    """The state of every cluster: `$ATOLL_STATE`, else `/var/lib/atoll`."""
    return Path(os.environ.get("ATOLL_STATE") or "/var/lib/atoll")


def state_dir(name: str) -> Path:
    """The folder with everything of one cluster. Raises `HostError` if the name is not valid for a cluster."""
    if not NAME.fullmatch(name):
        raise HostError(
            f"--name {name!r}: a lower-case letter or digit is wanted, and at most 30 more or '-' behind it"
        )
    return states_dir() / name


def record(name: str) -> Path:
    """The file that marks a folder as the state of a cluster. It has the content keys of the cluster's images."""
    return state_dir(name) / "cluster.json"


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lets one process at a time in. The others wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def claim() -> Iterator[None]:
    """Keeps other commands from the clusters of this machine, which share its network. Raises `HostError` if another
    command uses them."""
    folder = states_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # without root, the cluster itself reports the error
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise HostError("another demo, `up` or `down` runs on this machine; wait for its end") from error
    finally:
        os.close(handle)


def source_root() -> Path:
    """The checkout that this package runs from; images are built from it. Raises `FileNotFoundError` if the package
    was installed without its sources."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        raise FileNotFoundError(f"{root} is no checkout of Atoll: images are built from the sources")
    return root


def cluster_wide(folder: Path) -> Path:
    """Writes to this folder an overlay of the checkout's manifests that serves every namespace. Returns the folder.
    Raises `FileNotFoundError` as `source_root`."""
    base = os.path.relpath(source_root() / "manifests", folder.resolve())  # kustomize takes no absolute path
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(f"resources: [{base}]\ncomponents: [{base}/cluster-wide]\n")
    return folder
