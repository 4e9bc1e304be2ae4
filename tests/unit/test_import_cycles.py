"""No module imports itself through others. Imports that are only for types count too."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("atoll_operator", "atoll_runtime", "atoll_local", "atoll_cli", "atoll_bench")


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert "atoll_cli.text" in imports["atoll_cli.status"]
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))
