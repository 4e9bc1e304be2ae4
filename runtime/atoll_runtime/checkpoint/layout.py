"""Where things lie below a run's checkpoint URI."""

from __future__ import annotations

import re

GLOBAL = "global"
ITEM = "state"
"""Orbax's item inside a step."""

_MANIFEST = re.compile(rf"{GLOBAL}/(\d+)/manifest\.json")
_STEP = re.compile(rf"{GLOBAL}/(\d+)/.+")


def step_folder(step: int) -> str:
    """Folder of one global checkpoint."""
    return f"{GLOBAL}/{step}"


def state(step: int) -> str:
    """Orbax's folder of one global checkpoint."""
    return f"{GLOBAL}/{step}/{ITEM}"


def manifest(step: int) -> str:
    """The object whose existence makes a checkpoint complete."""
    return f"{GLOBAL}/{step}/manifest.json"


def complete_steps(paths: list[str]) -> list[int]:
    """Steps that have a manifest, newest first."""
    return sorted({int(found[1]) for path in paths if (found := _MANIFEST.fullmatch(path))}, reverse=True)


def all_steps(paths: list[str]) -> list[int]:
    """Steps of which anything exists, newest first."""
    return sorted({int(found[1]) for path in paths if (found := _STEP.fullmatch(path))}, reverse=True)
