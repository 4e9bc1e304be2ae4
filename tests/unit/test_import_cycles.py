"""No module imports itself through others. Imports that are only for types count too."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = ("atoll_operator", "atoll_runtime", "atoll_local", "atoll_cli", "atoll_bench")


def cycle(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle, with the same one first and last; empty if there is no cycle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found = cycle({name: graph.find_modules_directly_imported_by(name) for name in graph.modules})
    assert not found, " → ".join(reversed(found))


def test_a_cycle_is_found() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
