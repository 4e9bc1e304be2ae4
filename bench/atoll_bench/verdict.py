"""Turns the samples of several rounds into figures with their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atoll_bench.figures import spread
from atoll_bench.shapes import Shape

CASES = ("a", "b", "c", "d", "e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a case: the median of the rounds."""

    case: str
    name: str
    unit: str
    value: float
    low: float
    high: float
    """Least and most of the rounds."""
    target: float | None
    met: bool | None
    """Whether the median meets the target; None without a target."""
    units: int
    pods: int
    nodes: int
    rounds: int


TARGETS: Mapping[tuple[str, str], float] = {
    ("a", "operator_cpu"): 10.0,
    ("b", "last_created"): 0.15,
    ("b", "all_running"): 0.3,
    ("b", "healed"): 0.3,
    ("b", "others_touched"): 0.0,
    ("c", "first_created"): 0.2,
    ("c", "all_running"): 7.0,
    ("c", "healed"): 7.0,
    ("c", "others_touched"): 0.0,
    ("d", "cpu_share"): 0.01,
    ("d", "memory_peak"): 220.0,
    ("e", "after_stop"): 3.0,
    ("e", "after_kill"): 15.0,
}
"""The most that a figure may be."""
_UNITS = {"touched": "pods", "others_touched": "pods", "memory": "MiB", "memory_peak": "MiB"}


@dataclass(slots=True)
class Samples:
    """One value of each round, by case, shape and name."""

    values: dict[tuple[str, Shape, str], list[float]] = field(default_factory=dict)

    def add(self, case: str, shape: Shape, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self.values.setdefault((case, shape, name), []).append(value)


def figures(samples: Samples) -> list[Figure]:
    """In order of cases, and as they were measured."""
    by_case = sorted(samples.values.items(), key=lambda item: item[0][0])
    return [_figure(*key, values) for key, values in by_case]


def _figure(case: str, shape: Shape, name: str, values: Sequence[float]) -> Figure:
    target, value = TARGETS.get((case, name)), spread(values)[0]
    return Figure(
        case=case,
        name=name,
        unit=_UNITS.get(name, "cores" if name.endswith("share") else "s"),
        value=value,
        low=min(values),
        high=max(values),
        target=target,
        met=None if target is None else value <= target,
        units=shape.units,
        pods=shape.pods,
        nodes=shape.nodes,
        rounds=len(values),
    )
