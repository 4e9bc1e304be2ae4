"""Contracts of a small run and of a unit. A test gives only the sections that matter to it."""

from __future__ import annotations

from typing import Any

from atoll_runtime.contract import UnitContract
from atoll_runtime.simulate import blank
from atoll_runtime.simulate.blank import run_contract

__all__ = ["run_contract", "unit_contract"]


def unit_contract(unit: str = "a", **changes: Any) -> UnitContract:
    """A unit of one host."""
    return blank.unit_contract(unit, 1).model_copy(update=changes)
