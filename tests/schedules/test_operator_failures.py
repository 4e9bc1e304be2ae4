"""Every way in which a unit fails: its reason, the pods that are replaced, its budget, and that it learns again."""

from __future__ import annotations

from concurrent.futures import Executor

import pytest
from memory_failures import ROWS, outcome


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_unit_that_fails_heals_as_the_table_says(fixed_hashes: Executor, name: str) -> None:
    wrong = fixed_hashes.submit(outcome, name).result()
    assert not wrong, "\n".join(wrong)
