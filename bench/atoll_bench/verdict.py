"""Turns the samples of several rounds into figures with their targets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atoll_bench.figures import spread
from atoll_bench.shapes import Shape


class Sample(NamedTuple):
    """One value of a round."""

    case: str
    shape: Shape
    name: str
    value: float
    limit: bool
    """Whether it is of the bare client."""

    def __str__(self) -> str:
        return f"{'limit ' if self.limit else ''}({self.case}) {self.name} {self.value:.3f}"


def samples(case: str, shape: Shape, found: Mapping[str, float], *, limit: bool = False) -> list[Sample]:
    return [Sample(case, shape, name, value, limit) for name, value in found.items()]


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


def figures(found: Sequence[Sample]) -> list[Figure]:
    """Returns the figures in the order of cases, and within a case in the order of measurement. Leaves out those that
    only the bare client has, as of a creation before case (c) alone."""
    values: dict[tuple[str, Shape, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for each in found:
        values[each.case, each.shape, each.name][each.limit].append(each.value)
    ordered = sorted(values.items(), key=lambda item: item[0][0])
    return [_figure(*key, ours, limits) for key, (ours, limits) in ordered if ours]


def _figure(case: str, shape: Shape, name: str, values: Sequence[float], limits: Sequence[float]) -> Figure:
    target, value, ratio = TARGETS.get((case, name), Target()), spread(values)[0], None
    if target.pods is not None and shape.pods > target.pods:
        target = Target()
    if limits and min(limits) > 0:
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
        limit=spread(limits)[0] if limits else None,
        ratio=ratio,
        ratio_target=target.ratio,
        met=all(tests) if tests else None,
        units=shape.units,
        pods=shape.pods,
        nodes=shape.nodes,
        rounds=len(values),
    )
