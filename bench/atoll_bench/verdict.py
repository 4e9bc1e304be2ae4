"""Turns the samples of several rounds into figures with their targets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll_bench.figures import spread
from atoll_bench.shapes import Shape

Key = tuple[str, Shape, str, bool]
"""Case, shape and name of a figure, and whether it is of the bare client."""


@dataclass(frozen=True, slots=True)
class Target:
    """Upper bounds of a figure."""

    most: float | None = None
    ratio: float | None = None
    """Figure / limit."""
    pods: int | None = None
    """Pods of the largest run to which the target applies; None: it applies to runs of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a case: the median of the rounds."""

    case: str
    name: str
    unit: str
    value: float
    low: float
    high: float
    """Smallest and largest value of the rounds."""
    target: float | None
    limit: float | None
    """Median of the bare client in the same rounds."""
    ratio: float | None
    """Median over rounds of value / limit."""
    ratio_target: float | None
    met: bool | None
    """Whether the medians meet the targets; None if there is no target."""
    units: int
    pods: int
    nodes: int
    rounds: int


TARGETS: Mapping[tuple[str, str], Target] = {
    ("a", "all_running"): Target(ratio=1.2),
    ("a", "operator_cpu"): Target(most=6.0, pods=1600),
    ("b", "last_created"): Target(most=0.15),
    ("b", "all_running"): Target(most=0.3),
    ("b", "others_touched"): Target(most=0.0),
    ("c", "first_created"): Target(most=0.3),
    ("c", "healed"): Target(ratio=1.5),
    ("c", "others_touched"): Target(most=0.0),
    ("d", "cpu_share"): Target(most=0.01),
    ("d", "memory_peak"): Target(most=200.0),
    ("e", "after_stop"): Target(most=3.0),
    ("e", "after_kill"): Target(most=15.0),
    ("f", "memory_peak"): Target(most=350.0),
    ("f", "next_memory_peak"): Target(most=350.0),
    ("f", "longest_plan"): Target(most=0.2),
    ("f", "next_longest_plan"): Target(most=0.2),
}
_UNITS = dict.fromkeys(("touched", "others_touched"), "pods")
_UNITS["watches_cut"] = "watches"
_UNITS |= dict.fromkeys(("memory", "memory_peak", "next_memory_peak"), "MiB")


class Samples(defaultdict[Key, list[float]]):
    """Values by figure, one for each round."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(self, case: str, shape: Shape, found: Mapping[str, float], *, limit: bool = False) -> None:
        for name, value in found.items():
            self[case, shape, name, limit].append(value)

    def take(self, other: Samples) -> None:
        for key, values in other.items():
            self[key] += values

    @property
    def told(self) -> str:
        return ", ".join(
            f"{'limit ' if limit else ''}({case}) {name} {value:.3f}"
            for (case, _, name, limit), values in self.items()
            for value in values
        )


def figures(samples: Samples) -> list[Figure]:
    """Returns the figures in the order of cases, and within a case in the order of measurement."""
    return [
        _figure(case, shape, name, values, samples.get((case, shape, name, True)))
        for (case, shape, name, limit), values in sorted(samples.items(), key=lambda item: item[0][0])
        if not limit
    ]


def _figure(
    case: str, shape: Shape, name: str, values: Sequence[float], limits: Sequence[float] | None
) -> Figure:
    target, value, ratio = TARGETS.get((case, name), Target()), spread(values)[0], None
    if target.pods is not None and shape.pods > target.pods:
        target = Target()
    if limits is not None and min(limits) > 0:
        ratio = spread([one / other for one, other in zip(values, limits, strict=True)])[0]
    tests = [value <= target.most] if target.most is not None else []
    if target.ratio is not None and ratio is not None:
        tests.append(ratio <= target.ratio)
    return Figure(
        case=case,
        name=name,
        unit=_UNITS.get(name, "cores" if name.endswith("share") else "s"),
        value=value,
        low=min(values),
        high=max(values),
        target=target.most,
        limit=None if limits is None else spread(limits)[0],
        ratio=ratio,
        ratio_target=target.ratio,
        met=all(tests) if tests else None,
        units=shape.units,
        pods=shape.pods,
        nodes=shape.nodes,
        rounds=len(values),
    )
