"""Contracts of a small run and of a unit of one host. A test gives only the sections that matter to it."""

from atoll_runtime.simulate.blank import run_contract, unit_contract

__all__ = ["run_contract", "unit_contract"]
