"""Paths of folders and objects below a run's checkpoint URI."""

from __future__ import annotations

import re

GLOBAL = "global"
UNITS = "units"
EVALUATIONS = "evaluations"
"""Beside the checkpoints, so that no reader or clean-up of checkpoints finds a result."""
CACHE = "cache"
"""Compiled programs; see `atoll_runtime.learner.compilation`."""

_MANIFEST = re.compile(rf"{GLOBAL}/(\d+)/manifest\.json")
_STEP = re.compile(rf"{GLOBAL}/(\d+)/.+")
_UNIT = re.compile(rf"{UNITS}/([^/]+)/(\d+)/(.+)")
_EVALUATION = re.compile(rf"{EVALUATIONS}/(\d+)\.json")
_HOST = re.compile(r"host-(\d+)-of-(\d+)\.json")


def step_folder(step: int) -> str:
    """Folder of one global checkpoint."""
    return f"{GLOBAL}/{step}"


def item(step: int, shard: int, shards: int) -> str:
    """Folder of the arrays of a shard's part."""
    return f"{GLOBAL}/{step}/state-{shard}-of-{shards}"


def part(step: int, shard: int, shards: int) -> str:
    """The object that makes a shard's part complete."""
    return f"{GLOBAL}/{step}/shard-{shard}-of-{shards}.json"


def manifest(step: int) -> str:
    """The object that makes a checkpoint complete."""
    return f"{GLOBAL}/{step}/manifest.json"


def complete_steps(paths: list[str]) -> list[int]:
    """Steps that have a manifest, newest first."""
    return sorted({int(found[1]) for path in paths if (found := _MANIFEST.fullmatch(path))}, reverse=True)


def all_steps(paths: list[str]) -> list[int]:
    """Steps of which anything exists, newest first."""
    return sorted({int(found[1]) for path in paths if (found := _STEP.fullmatch(path))}, reverse=True)


def evaluation(step: int) -> str:
    """The result of one global checkpoint's evaluation."""
    return f"{EVALUATIONS}/{step}.json"


def evaluated_steps(paths: list[str]) -> set[int]:
    """Steps that have a result."""
    return {int(found[1]) for path in paths if (found := _EVALUATION.fullmatch(path))}


def unit_folder(unit: str, cut: int) -> str:
    """Folder of a unit's save for the cut at global step `cut`."""
    return f"{UNITS}/{unit}/{cut}"


def unit_item(unit: str, cut: int, host: int, hosts: int) -> str:
    """Folder of one host's arrays. The manifest of this name and `.json` is written after them; those of all hosts make
    the save complete."""
    return f"{UNITS}/{unit}/{cut}/host-{host}-of-{hosts}"


def unit_manifests(paths: list[str]) -> dict[str, int]:
    """Manifests of hosts among the objects of unit saves, each with the number of hosts in its name."""
    found = {path: _UNIT.fullmatch(path) for path in paths}
    return {
        path: int(host[2]) for path, match in found.items() if match and (host := _HOST.fullmatch(match[3]))
    }


def unit_saves(paths: list[str]) -> dict[str, dict[int, int]]:
    """The cuts of each unit, newest first, each with its number of hosts if all their manifests exist, else with 0."""
    found: dict[str, dict[int, dict[int, set[int]]]] = {}
    for path in paths:
        if match := _UNIT.fullmatch(path):
            by_hosts = found.setdefault(match[1], {}).setdefault(int(match[2]), {})
            if host := _HOST.fullmatch(match[3]):
                by_hosts.setdefault(int(host[2]), set()).add(int(host[1]))
    return {
        unit: {
            cut: max((hosts for hosts, there in cuts[cut].items() if there >= set(range(hosts))), default=0)
            for cut in sorted(cuts, reverse=True)
        }
        for unit, cuts in found.items()
    }
