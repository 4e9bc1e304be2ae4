"""Prometheus metrics of runs, from the cached objects. Only the leading operator exports them.

The finest label is the run, never a pod or a unit. A series disappears with its run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from atoll_operator.api.group import Object
from atoll_operator.reconcilers.inventory import Inventory

RUN = ("namespace", "run")
FIGURES = {
    "atoll_run_step": ("Global step.", ("status", "globalStep")),
    "atoll_run_progress_percent": ("Done of the target.", ("status", "progressPercent")),
    "atoll_run_loss": ("Training loss in nats per token, mean of the units.", ("status", "loss")),
    "atoll_run_checkpoint_step": (
        "Global step of the newest complete checkpoint.",
        ("status", "checkpoint", "step"),
    ),
    "atoll_run_checkpoint_interval_steps": (
        "Global steps between two checkpoints, as the run asks for them.",
        ("spec", "checkpoint", "intervalSteps"),
    ),
}
"""By name of the gauge: its help text, and the path of its value in the run."""


class RunCollector(Collector):
    """Computes the metrics at each scrape; none unless this operator leads, because each run would be counted twice."""

    def __init__(self, inventory: Inventory, leads: Callable[[], bool]) -> None:
        self._inventory, self._leads = inventory, leads

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return (
            _families(self._bodies("TrainingRun"), self._bodies("LearnerUnit")) if self._leads() else iter(())
        )

    def _bodies(self, kind: str) -> list[Object]:
        return list(self._inventory.cache.values(kind))


def _families(runs: Collection[Object], units: Collection[Object]) -> Iterator[GaugeMetricFamily]:
    phases = GaugeMetricFamily("atoll_runs", "TrainingRuns by phase.", labels=("phase",))
    for phase, count in Counter(_phase(run) for run in runs).items():
        phases.add_metric((phase,), count)
    yield phases
    conditions = GaugeMetricFamily(
        "atoll_run_condition", "1 while the condition is True.", labels=(*RUN, "condition", "reason")
    )
    for run in runs:
        for item in run.get("status", {}).get("conditions", ()):
            told = (*_name(run), item["type"], item["reason"])
            conditions.add_metric(told, item["status"] == "True")
    yield conditions
    members = GaugeMetricFamily("atoll_run_units", "LearnerUnits of a run by phase.", labels=(*RUN, "phase"))
    counts = Counter((unit["metadata"]["namespace"], unit["spec"]["run"], _phase(unit)) for unit in units)
    for labels, count in counts.items():
        members.add_metric(labels, count)
    yield members
    for name, (text, path) in FIGURES.items():
        figure = GaugeMetricFamily(name, text, labels=RUN)
        for run in runs:
            if (value := _at(run, path)) is not None:
                figure.add_metric(_name(run), value)
        yield figure


def _at(body: Object, path: Iterable[str]) -> float | None:
    """The value at a path; None, and so no series, if it is not known yet."""
    found: Any = body
    for field in path:
        found = found.get(field, {})
    return None if found == {} else float(found)


def _name(run: Object) -> tuple[str, str]:
    return run["metadata"]["namespace"], run["metadata"]["name"]


def _phase(body: Object) -> str:
    return str(body.get("status", {}).get("phase", "Pending"))
