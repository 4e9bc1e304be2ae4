"""Finds a program: given by the user, cached, or built; in that order."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from atoll_local.catalogue import PROGRAMS, Program
from atoll_local.errors import HostError
from atoll_local.gobuild import build
from atoll_local.paths import cache_dir, locked

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Print no progress."""


def find(name: str, progress: Progress = silent) -> Path:
    """The executable `name`, built if necessary. Raises `HostError` if the name is unknown, a given path is not
    executable, or the program cannot be obtained."""
    program = _known(name)
    if found := _given(program):
        return found
    target = _place(program)
    with locked(target.with_name(target.name + ".lock")):  # a process that waited finds it cached
        if target.is_file():
            return target
        started = time.monotonic()
        partial = target.with_name(target.name + ".partial")
        progress(f"{program.name} {program.version}: building from its Go module (minutes, once)")
        family = "kubernetes" if program.module == "k8s.io/kubernetes" else program.name
        build(program, cache_dir() / "build" / family, partial)
        partial.chmod(0o755)
        partial.replace(target)
        progress(f"{program.name} {program.version}: built in {time.monotonic() - started:.0f} s")
    return target


def installed(name: str) -> Path:
    """Returns the user's program of any version, for the user's own cluster; else the pinned one if it is cached.
    Nothing is built. Raises `HostError` if the name is unknown, a given path is not executable, or the program is
    neither on PATH nor cached."""
    program = _known(name)
    if found := _given(program) or shutil.which(name):
        return Path(found)
    if (target := _place(program)).is_file():
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
    variable = _variable(program)
    given = os.environ.get(variable)
    if given and not os.access(given, os.X_OK):
        raise HostError(f"{variable}={given!r} is not an executable file")
    return Path(given) if given else None


def _place(program: Program) -> Path:
    return cache_dir() / "bin" / f"{program.name}-{program.version}"
