"""Contracts of a small run and of a unit. A test gives only the sections that matter to it."""

from __future__ import annotations

from typing import Any

from atoll_runtime.contract import (
    CheckpointSpec,
    DataSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    RunContract,
    SyncerAddress,
    TargetSpec,
    UnitContract,
)
from atoll_runtime.simulate import blank


def run_contract(**sections: Any) -> RunContract:
    """A run with data and bucket that do not exist."""
    defaults: dict[str, Any] = {
        "name": "run",
        "namespace": "default",
        "uid": "1",
        "model": ModelSpec(preset="1m"),
        "data": DataSpec(uri="file:///nowhere", sequence_length=64),
        "inner": InnerSpec(),
        "outer": OuterSpec(),
        "quorum": QuorumSpec(),
        "target": TargetSpec(global_steps=100),
        "checkpoint": CheckpointSpec(uri="file:///nowhere"),
        "shards": (SyncerAddress(host="localhost"),),
    }
    return RunContract(**(defaults | sections))


def unit_contract(unit: str = "a", **changes: Any) -> UnitContract:
    """A unit of one host."""
    return blank.unit_contract(unit, 1).model_copy(update=changes)
