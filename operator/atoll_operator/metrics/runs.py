"""Prometheus metrics of runs, from the cached objects. Only the leading operator exports them. The finest label is the
run, never a pod or a unit. A series disappears with its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from atoll_operator.api.group import Object
from atoll_operator.kube.cache import Cache
from atoll_operator.plan.conditions import LINK_ADEQUATE

RUN = ("namespace", "run")
Values = tuple[str, ...]
FIGURES = {
    "step": ("status.globalStep", "Global step."),
    "progress_percent": ("status.progressPercent", "Done of the target."),
    "loss": ("status.loss", "Training loss in nats per token, mean of the units."),
    "checkpoint_step": ("status.checkpoint.step", "Global step of the newest complete checkpoint."),
    "checkpoint_interval_steps": ("spec.checkpoint.intervalSteps", "Wanted steps between two checkpoints."),
}
"""For each ending of a gauge's name: the path of its value in the run, and its help text."""


class RunCollector(Collector):
    """Computes the metrics at each scrape. Only the leader exports them; otherwise each run would be counted twice."""

    def __init__(self, cache: Cache, leads: Callable[[], bool]) -> None:
        self._cache, self._leads = cache, leads

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if not self._leads():
            return
        runs, units = (list(self._cache.values(kind)) for kind in ("TrainingRun", "LearnerUnit"))
        yield _counted("atoll_runs", "TrainingRuns by phase.", ("phase",), ((_phase(run),) for run in runs))
        phases = ((*_run_of(unit), _phase(unit)) for unit in units)
        yield _counted("atoll_run_units", "LearnerUnits of a run by phase.", (*RUN, "phase"), phases)
        text = "LearnerUnits of a run by the reason of LinkAdequate."
        links = (
            (*_run_of(unit), _condition(unit, LINK_ADEQUATE).get("reason", "NotMeasured")) for unit in units
        )
        yield _counted("atoll_run_links", text, (*RUN, "reason"), links)
        suspects = (_run_of(unit) for unit in units if _condition(unit, "Suspect").get("status") == "True")
        yield _counted("atoll_run_suspects", "LearnerUnits of a run that are Suspect.", RUN, suspects)
        text = "1 while the condition is True."
        conditions = GaugeMetricFamily("atoll_run_condition", text, labels=(*RUN, "condition", "reason"))
        for run in runs:
            for item in run.get("status", {}).get("conditions", ()):
                values = (*_run_of(run), item["type"], item["reason"])
                conditions.add_metric(values, item["status"] == "True")
        yield conditions
        for name, (path, text) in FIGURES.items():
            figure = GaugeMetricFamily(f"atoll_run_{name}", text, labels=RUN)
            for run in runs:
                if (value := _at(run, path)) is not None:
                    figure.add_metric(_run_of(run), value)
            yield figure


def _counted(name: str, text: str, labels: tuple[str, ...], values: Iterable[Values]) -> GaugeMetricFamily:
    """Counts how often each combination of label values occurs."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for each, count in Counter(values).items():
        family.add_metric(each, count)
    return family


def _at(body: Object, path: str) -> float | None:
    """The value at a path. None if it is not known yet: then there is no series."""
    found: Any = body
    for field in path.split("."):
        found = found.get(field, {})
    return None if found == {} else float(found)


def _run_of(body: Object) -> tuple[str, str]:
    """Namespace and run name of a run or a unit."""
    return body["metadata"]["namespace"], body["spec"].get("run", body["metadata"]["name"])


def _condition(unit: Object, name: str) -> Object:
    """The condition; empty before the first pass."""
    conditions = unit.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == name), {})


def _phase(body: Object) -> str:
    return str(body.get("status", {}).get("phase", "Pending"))
