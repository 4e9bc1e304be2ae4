"""The operator in scenes of several steps in the memory world."""

from __future__ import annotations

from concurrent.futures import Executor

import pytest
from memory_scenes import SCENES, play


@pytest.mark.parametrize("name", SCENES)
def test_scene(fixed_hashes: Executor, name: str) -> None:
    fixed_hashes.submit(play, name).result()
