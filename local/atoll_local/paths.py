"""Where programs, images and the state of clusters lie."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Programs and images, kept between runs: `$ATOLL_CACHE`, else the user's cache folder."""
    if chosen := os.environ.get("ATOLL_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "atoll"


def state_dir(name: str) -> Path:
    """Everything of one running cluster: `$ATOLL_STATE/NAME`, else `/var/lib/atoll/NAME`."""
    return Path(os.environ.get("ATOLL_STATE", "/var/lib/atoll")) / name


def source_root() -> Path:
    """The checkout that this package runs from; images are built from it.

    Raises:
        FileNotFoundError: the package was installed without its sources.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        raise FileNotFoundError(f"{root} is no checkout of Atoll: images are built from the sources")
    return root
