"""The operator is killed before and after each of its writes, and the world comes out as if it had lived."""

from __future__ import annotations

from concurrent.futures import Executor

import pytest
from memory_crashes import problems

PARTS = 4
"""The workers share the tests between them."""


@pytest.mark.timeout(900)  # 15 s alone
@pytest.mark.parametrize("part", range(PARTS))
def test_operator_killed_at_any_write_leaves_the_world_as_if_it_had_lived(
    fixed_hashes: Executor, part: int
) -> None:
    wrong = fixed_hashes.submit(problems, part, PARTS).result()
    assert not wrong, "\n".join([f"{len(wrong)} deaths", *wrong[:20]])
