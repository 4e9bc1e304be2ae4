"""Finds a program: given by the user, on PATH, cached, downloaded, or built; in that order."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import re
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from atoll_local.catalogue import PROGRAMS, Download, Program
from atoll_local.errors import HostError
from atoll_local.gobuild import build
from atoll_local.paths import cache_dir, locked

Progress = Callable[[str], None]
CONNECT_TIMEOUT = 5.0
"""Seconds until a download host counts as unreachable for this process."""
_unreachable: set[str] = set()


def silent(_: str) -> None:
    """No progress."""


def find(name: str, progress: Progress = silent) -> Path:
    """The executable `name`, downloaded or built if necessary.

    Raises:
        HostError: the name is unknown, a given path is no executable, or the program cannot be obtained.
    """
    program = _known(name)
    if found := _given(program) or _on_path(program):
        return found
    target = _place(program)
    with locked(target.with_name(target.name + ".lock")):  # whoever waits finds it cached
        if _cached(target):
            return target
        started = time.monotonic()
        partial = target.with_name(target.name + ".partial")
        route = "downloaded"
        if not _download(program.download, partial):
            route = "built from its Go module"
            progress(f"{program.name} {program.version}: building from its Go module (minutes, once)")
            build(program, cache_dir() / "build" / _family(program), partial)
        _adopt(partial, target)
        progress(f"{program.name} {program.version}: {route} in {time.monotonic() - started:.0f} s")
    return target


def installed(name: str) -> Path:
    """The user's `name` of any version, for the user's own cluster; else the pinned one if it is cached.

    Nothing is downloaded or built.

    Raises:
        HostError: the name is unknown, a given path is no executable, or the program is not on PATH.
    """
    program = _known(name)
    if found := _given(program) or shutil.which(name):
        return Path(found)
    if _cached(target := _place(program)):
        return target
    raise HostError(
        f"{name} is not on PATH: install it, or name it with {_variable(program)}=/path/to/{name}"
    )


def find_all(names: tuple[str, ...], progress: Progress = silent) -> dict[str, Path]:
    """Finds programs in the given order, because builds reuse each other's results."""
    return {name: find(name, progress) for name in names}


def _known(name: str) -> Program:
    program = PROGRAMS.get(name)
    if program is None:
        raise HostError(f"unknown program {name!r}: known are {', '.join(sorted(PROGRAMS))}")
    return program


def _variable(program: Program) -> str:
    return "ATOLL_" + program.name.upper().replace("-", "_")


def _given(program: Program) -> Path | None:
    """The path given in the environment."""
    variable = _variable(program)
    given = os.environ.get(variable)
    if given and not os.access(given, os.X_OK):
        raise HostError(f"{variable}={given!r} is not an executable file")
    return Path(given) if given else None


def _place(program: Program) -> Path:
    """Its path in the cache."""
    return cache_dir() / "bin" / f"{program.name}-{program.version}"


def _family(program: Program) -> str:
    return "kubernetes" if program.module == "k8s.io/kubernetes" else program.name


def _on_path(program: Program) -> Path | None:
    """The program on PATH if its minor version is the pinned one or a newer one of the same major."""
    found = shutil.which(program.name)
    if found is None:
        return None
    try:
        done = subprocess.run(
            [found, *program.version_args], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"v?(\d+)\.(\d+)\.\d+", done.stdout + done.stderr)
    if done.returncode != 0 or version is None:
        return None
    wanted = tuple(int(part) for part in program.version.split(".")[:2])
    have = (int(version[1]), int(version[2]))
    return Path(found) if have[0] == wanted[0] and have[1] >= wanted[1] else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cached(target: Path) -> bool:
    """Whether the cached file is complete and unchanged."""
    record = target.with_name(target.name + ".sha256")
    return target.is_file() and record.is_file() and record.read_text().strip() == _digest(target)


def _adopt(partial: Path, target: Path) -> None:
    partial.chmod(0o755)
    target.with_name(target.name + ".sha256").write_text(_digest(partial) + "\n")
    partial.replace(target)


def _fetch(url: str) -> bytes | None:
    host = urlsplit(url).netloc
    if host in _unreachable:
        return None
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError:
        return None
    except (OSError, http.client.HTTPException):  # the latter for an interrupted answer
        _unreachable.add(host)
        return None


def _download(download: Download | None, target: Path) -> bool:
    """Downloads the official file and verifies its published checksum. Returns False if it is not available.

    Raises:
        HostError: the file does not have the published checksum.
    """
    if download is None or os.environ.get("ATOLL_NO_DOWNLOAD"):
        return False
    sums = _fetch(download.checksum_url)
    content = _fetch(download.url) if sums is not None else None
    if sums is None or content is None:
        return False
    name = download.url.rsplit("/", 1)[1]
    published = [
        line.split()[0] for line in sums.decode().splitlines() if line.strip() and _names(line, name)
    ]
    if hashlib.sha256(content).hexdigest() not in published:
        raise HostError(
            f"{download.url} does not have the checksum that {download.checksum_url} gives for it"
        )
    if not download.member:
        target.write_bytes(content)
        return True
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if member.isfile() and Path(member.name).name == download.member:
                file = archive.extractfile(member)
                assert file is not None
                target.write_bytes(file.read())
                return True
    raise HostError(f"{download.url} holds no file called {download.member!r}")


def _names(line: str, name: str) -> bool:
    """Whether a line of a checksum file, one bare sum or lines `sum  name`, is of the file `name`."""
    parts = line.split()
    return len(parts) == 1 or parts[1].lstrip("*").rsplit("/", 1)[-1] == name
