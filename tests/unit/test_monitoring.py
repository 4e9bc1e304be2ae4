"""Every metric is explained. Alerts and dashboard use only existing metrics with existing labels."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from objects import RUN
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from atoll_operator.api.common import RUN_CONDITIONS
from atoll_operator.metrics.process import Metrics
from atoll_operator.metrics.runs import RunCollector
from atoll_operator.reconcilers.inventory import Inventory
from atoll_runtime.contract import EvaluationReport, EvaluatorStatus, LedgerReport, SyncerStatus, UnitReport
from atoll_runtime.evaluator.__main__ import metrics as evaluator_metrics
from atoll_runtime.syncer.status import metrics as syncer_metrics

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "charts" / "atoll" / "files"
GROUPS = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
PLACE = {"namespace", "run", "pod"}
"""Labels that Prometheus adds to the metrics of pods."""
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
Labels = dict[str, set[str]]


def run_body(**status: Any) -> dict[str, Any]:
    body = {**RUN, "metadata": metadata("r"), "status": status}
    return {**body, "spec": {**RUN["spec"], "checkpoint": {"uri": "gs://bucket/run", "intervalSteps": 20}}}


def unit_body(name: str, phase: str, *conditions: dict[str, str]) -> dict[str, Any]:
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "LearnerUnit"}
    status = {"phase": phase, "conditions": [*conditions]}
    return {**kind, "metadata": metadata(name), "spec": {"run": "r"}, "status": status}


def metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "generation": 1}


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason}


def told_of(*bodies: dict[str, Any], leads: bool = True) -> dict[str, float]:
    """Metrics of runs of an operator that has seen these objects: name with labels to value."""
    store, registry = Inventory(), CollectorRegistry()
    for body in bodies:
        store.put(body["kind"], body)
    registry.register(RunCollector(store, lambda: leads))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


SUSPECT = condition("Suspect", "True", "Suspect")
RUNNING = run_body(
    phase="Running", globalStep=70, progressPercent=70, loss=2.5, checkpoint={"step": 60},
    conditions=[condition("Ready", "True", "QuorumLearning"), condition("Degraded", "False", "AsExpected")],
)  # fmt: skip


@functools.cache
def exposed() -> Labels:
    """Every series that one of our programs can expose, without a histogram's suffixes, and its labels."""
    operator = Metrics()
    operator.restarted("Hang")
    operator.poll_errors.labels(reason="x").inc()
    operator.reconcile_errors.labels(kind="x", error="x").inc()
    operator.api_errors.labels(code="x").inc()
    for histogram in (operator.reconcile_seconds, operator.plan_seconds):
        histogram.labels(kind="x").observe(1)
    operator.heal_stage_seconds.labels(stage="x").observe(1)
    store = Inventory()
    for body in (RUNNING, unit_body("r-p-0", "Failed", SUSPECT)):
        store.put(body["kind"], body)
    operator.registry.register(RunCollector(store, lambda: True))
    unit = UnitReport(incarnation=1, hosts=1, state="Learning", refusals={"norm": 1})
    ledger = LedgerReport(trained=3, merged=1, discarded={"Missed": 1}, in_flight=1)
    syncer = SyncerStatus(run_uid="u", phase="Running", units={"a": unit}, ledger={"a": ledger})
    newest = EvaluationReport(step=1, loss=1.0, tokens=1, split="heldout", seconds=1.0, time=1.0)
    evaluator = EvaluatorStatus(run_uid="u", phase="Waiting", newest=newest)
    texts = generate_latest(operator.registry).decode(), syncer_metrics(syncer), evaluator_metrics(evaluator)
    found: Labels = {}
    for family in (each for text in texts for each in text_string_to_metric_families(text)):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            name = family.name if family.type == "histogram" else sample.name
            found.setdefault(name, set()).update(sample.labels.keys() - {"le"})
    return found


def explained() -> Labels:
    row = re.compile(r"^\| `(atoll_\w+)` \| (?:gauge|counter|histogram) \| (.*?) \|", re.M)
    rows = row.findall((ROOT / "docs" / "monitoring.md").read_text())
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Name and matched labels of every selector of an expression.

    Raises:
        ValueError: the expression is not PromQL.
    """
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def grouped(expression: str) -> set[str]:
    """Labels by which the expression aggregates or matches."""
    lists = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    return {label.strip() for each in lists for label in each.split(",")} - {""}


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES] + [
    pytest.param(target["expr"], id=f"{panel['title']}, {target['legendFormat']}")
    for panel in PANELS
    for target in panel["targets"]
]


def test_every_metric_is_explained_with_its_labels_and_nothing_else_is() -> None:
    assert explained() == exposed()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_alerts_and_dashboard_ask_for_can_be_told(expression: str) -> None:
    known = exposed()
    asked = selectors(expression)
    assert asked
    for name, labels in asked:
        suffix = next((end for end in OF_HISTOGRAMS if name.removesuffix(end) in known), "")
        assert name.removesuffix(suffix) in known, name
        assert labels <= known[name.removesuffix(suffix)] | PLACE, (name, labels)
    had = {label for name in known for label in known[name]} | PLACE | {"le"}
    assert grouped(expression) <= had, expression


def test_every_alert_says_what_is_wrong_and_what_to_do_and_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    named = re.findall(r"^\| `(Atoll\w+)` \| (\d+) min \|", text, re.M)
    assert named == [(rule["alert"], rule["for"].removesuffix("m")) for rule in RULES]
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        matched = {label for _, given in selectors(rule["expr"]) for label in given}
        assert used <= grouped(rule["expr"]) | matched | PLACE


@pytest.mark.parametrize("alert", ["AtollRunBelowQuorum", "AtollUnitOutOfRestarts", "AtollLinkInadequate"])
def test_what_lasts_beyond_the_end_of_a_run_alerts_nobody_then(alert: str) -> None:
    """A unit's phase and the reason of `Ready` keep their last value after the end."""
    ends = {"Complete", "Failed", "Suspended"}
    assert ends < set(RUN_CONDITIONS)
    [expression] = (rule["expr"] for rule in RULES if rule["alert"] == alert)
    node = promql_parser.parse(expression)
    assert isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "unless"
    assert str(node.modifier.matching) == "on (namespace, run)"
    told = re.fullmatch(r'\(atoll_run_condition\{condition=~"([^"]*)"\} == 1\)', str(node.rhs))
    assert told is not None and set(told[1].split("|")) == ends, expression


def test_the_operator_that_leads_tells_of_each_run_and_one_that_stands_by_of_none() -> None:
    slow = condition("LinkAdequate", "False", "LinkTooSlow")
    bodies = (
        RUNNING,
        unit_body("a", "Learning"),
        unit_body("b", "Learning", slow),
        unit_body("c", "Failed", SUSPECT),
    )
    assert told_of(*bodies, leads=False) == {}
    at = 'namespace="n",run="r"'
    assert told_of(*bodies) == {
        'atoll_runs{phase="Running"}': 1,
        'atoll_run_condition{condition="Ready",namespace="n",reason="QuorumLearning",run="r"}': 1,
        'atoll_run_condition{condition="Degraded",namespace="n",reason="AsExpected",run="r"}': 0,
        'atoll_run_units{namespace="n",phase="Learning",run="r"}': 2,
        'atoll_run_units{namespace="n",phase="Failed",run="r"}': 1,
        'atoll_run_links{namespace="n",reason="NotMeasured",run="r"}': 2,
        'atoll_run_links{namespace="n",reason="LinkTooSlow",run="r"}': 1,
        f"atoll_run_suspects{{{at}}}": 1,
        f"atoll_run_step{{{at}}}": 70, f"atoll_run_progress_percent{{{at}}}": 70, f"atoll_run_loss{{{at}}}": 2.5,
        f"atoll_run_checkpoint_step{{{at}}}": 60, f"atoll_run_checkpoint_interval_steps{{{at}}}": 20,
    }  # fmt: skip


def test_reasons_that_images_choose_are_few_series_and_displace_none_of_the_operators() -> None:
    metrics = Metrics()
    for number in range(10_000):
        metrics.restarted(f"Reason{number}")
    for reason in ("Suspect", "Suspect", "Reason0", "Reason9999"):
        metrics.restarted(reason)
    told = {
        sample.labels["reason"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "atoll_unit_restarts_total"
    }
    assert len(told) < 100 and sum(told.values()) == 10_004
    assert (told["Suspect"], told["Reason0"], "Reason9999" in told) == (2, 2, False)
    assert told["Other"] > 9_000


def test_a_run_that_was_not_visited_yet_is_counted_and_has_no_figures() -> None:
    fresh = {key: value for key, value in run_body().items() if key != "status"}
    assert told_of(fresh) == {
        'atoll_runs{phase="Pending"}': 1,
        'atoll_run_checkpoint_interval_steps{namespace="n",run="r"}': 20,
    }
