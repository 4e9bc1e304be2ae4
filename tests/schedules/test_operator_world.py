"""The operator in a world in memory and in simulated time: failures, scenes, random stories, and deaths at each write.
The stories are the same on every machine; SEED and STORIES choose others."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from pathlib import Path

import memory_crashes
import memory_failures
import memory_scenes
import operator_stories
import pytest

SEED = int(os.environ.get("SEED") or 20261123)
COUNT = int(os.environ.get("STORIES") or 120)
FAILED_ONCE = (
    6,  # a pod that had no node yet was gone with its deletion, and its unit said that it drained
    6008,  # a unit began anew while a pod of its deleted namesake ended in another pool, and both counted as one slice
    6056,  # the poll of a run that ended went on for ever, and all passes with it
)
SEEDS = (*FAILED_ONCE, *range(SEED, SEED + COUNT))
PAGE = Path(__file__).resolve().parents[2] / "docs/healing.md"
ACTIONS = {"none": "`RestartProcess`", "pod": "`ReplacePod`", "both": "`ReplacePod`", "gang": "`LeavePlace`"}
"""What the page calls it if these pods are replaced after a failure."""
PART, PARTS = 10, 4
"""Stories of one test, and tests of all deaths: the workers share the tests between them."""


@pytest.mark.parametrize("name", [row.name for row in memory_failures.ROWS])
def test_unit_that_fails_heals_as_the_table_says(fixed_hashes: Executor, name: str) -> None:
    wrong = fixed_hashes.submit(memory_failures.outcome, name).result()
    assert not wrong, "\n".join(wrong)


def lines() -> dict[str, list[str]]:
    """The lines of both tables of the page, by their first cell."""
    tables = PAGE.read_text().split("## Slots\n")[1].split("A unit also gets")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables if line.startswith("| ")]
    return {seen: rest for seen, *rest in rows if rest[0] != "action"}


@pytest.mark.parametrize("line", lines())
def test_each_line_of_the_page_is_played_as_it_says(line: str) -> None:
    action, anew, charged = lines()[line]
    [rows] = [rows for words, rows in memory_failures.PAGE.items() if words in line]
    assert len(memory_failures.PAGE) == len(lines())
    for row in map(memory_failures.BY_NAME.__getitem__, rows):
        if action == "`Serving`":
            assert row.after or (row.replaced, row.reason, anew, charged) == ("none", "", "no", "no")
        else:
            said = (
                ACTIONS[row.replaced],
                "yes" if row.reason else "no",
                "yes" if row.reason and row.charged else "no",
            )
            assert said == (action, anew, charged)


@pytest.mark.parametrize("name", memory_scenes.SCENES)
def test_scene(fixed_hashes: Executor, name: str) -> None:
    fixed_hashes.submit(memory_scenes.play, name).result()


@pytest.mark.timeout(900)  # 15 s alone
@pytest.mark.parametrize("part", range(PARTS))
def test_operator_killed_at_any_write_leaves_the_same_world(fixed_hashes: Executor, part: int) -> None:
    wrong = fixed_hashes.submit(memory_crashes.problems, part, PARTS).result()
    assert not wrong, "\n".join([f"{len(wrong)} deaths", *wrong[:20]])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, len(SEEDS) // 3, PART))
def test_no_node_pool_is_shared_and_every_one_is_used_in_the_end(fixed_hashes: Executor, first: int) -> None:
    wrong = [told for told in fixed_hashes.map(operator_stories.contest, SEEDS[first : first + PART]) if told]
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(900)  # 10 s alone
@pytest.mark.parametrize("first", range(0, len(SEEDS), PART))
def test_an_operator_at_rest_has_nothing_left_to_do(fixed_hashes: Executor, first: int) -> None:
    wrong = [told for told in fixed_hashes.map(operator_stories.outcome, SEEDS[first : first + PART]) if told]
    assert not wrong, "\n".join(wrong)
