"""A run without tensor values: contract, layout, arrays, and the parts that a training loop needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
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
from atoll_runtime.learner.proposal import NOTHING
from atoll_runtime.payloads import HostPart, Scan
from atoll_runtime.protocol.fragments import Fragment, Layout, Piece, fingerprint, lay
from atoll_runtime.protocol.messages import Header
from atoll_runtime.syncer.state import Version


def blank_layout(sizes: Sequence[Sequence[int]]) -> Layout:
    """Builds a layout from the elements of each fragment, by shard. A fragment has one tensor for each shard that owns
    a part of it."""
    fragments = []
    for p, each in enumerate(zip(*sizes, strict=True)):
        count, size = max(1, sum(map(bool, each))), max(each) or 10
        fragments.append(lay(p, [Piece(f"w{p}.{n}", None, (size,), size, False) for n in range(count)]))
    shapes = {piece.tensor: piece.shape for fragment in fragments for piece in fragment.pieces}
    return Layout(tuple(fragments), fingerprint(fragments), shapes).split(len(sizes))


def run_contract(**sections: Any) -> RunContract:
    """Returns a contract of one shard, with data and bucket that do not exist, unless `sections` say otherwise."""
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


def unit_contract(unit: str = "a", incarnation: int = 1, **more: Any) -> UnitContract:
    """Returns the contract of a unit with one host and one data stream, unless `more` says otherwise."""
    single = {"host": 0, "hosts": 1, "coordinator": "simulated:1", "batch": 1, "stream": 0, "streams": 1}
    facts: dict[str, Any] = {**single, **more}
    return UnitContract(unit=unit, incarnation=incarnation, **facts)


class BlankArrays:
    """See `interfaces.Arrays`. A merge changes only the version and its encodings."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def read(self, fragment: Fragment, header: Header, body: memoryview) -> HostPart:
        return HostPart(header.part.start, body, Scan(True, (1.0,) * len(fragment.pieces)))

    def merge(
        self, fragment: Fragment, step: int, members: object, parts: Mapping[Any, HostPart], old: Version
    ) -> Version:
        merged: Any = SimpleNamespace(theta=old.theta, momentum=old.momentum, wire=old.wire)
        if self._codec == "int4":
            merged.wire = memoryview(bytearray(old.wire))
        return old.next(step, merged, self._codec)

    def close(self) -> None:
        """See `Arrays`."""


class BlankIsland:
    """Stands for `Inner`, `Batches`, `Snapshots` and `Encoders` of a training loop. Subclasses count steps."""

    cursor: int
    theta: Any = None

    @property
    def encoders(self) -> BlankIsland:
        return self

    def choose(self, codec: str) -> str:
        return codec

    def step(self, tokens: object, rate: float) -> float:
        return 1.0

    def take(self, timeout: float) -> Any:
        return SimpleNamespace(tokens=None, cursor=self.cursor + 1)

    def wanted(self, versions: Sequence[int]) -> int:
        return NOTHING

    def record(self, cut: int, inner_step: int) -> None:
        """See `Snapshots`."""

    def collect(self) -> None:
        """See `Snapshots`."""


def whole_body(body: object) -> Any:
    """Returns the result of `Fragments.extract` for a host's part with these bytes."""
    return SimpleNamespace(addressable_shards=[SimpleNamespace(index=(slice(0),), data=body)])
