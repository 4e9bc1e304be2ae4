"""Which keys are reconciled after a syncer's report, and how soon."""

from __future__ import annotations

import pytest

from atoll_operator.kube.cache import Key
from atoll_operator.plan.run.status_diff import StatusDiff
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS, report_wakeups

RUN = Key("TrainingRun", "n", "r")
SLOW_RUN, SLOW_UNIT = FIGURES_SECONDS["TrainingRun"], FIGURES_SECONDS["LearnerUnit"]


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        pytest.param(StatusDiff(), {}, id="nothing"),
        pytest.param(StatusDiff(run=True, figures=True), {"r": 0.0}, id="the-run-changed"),
        pytest.param(
            StatusDiff(figures=True, moved=frozenset({"a"})), {"r": SLOW_RUN, "a": SLOW_UNIT}, id="figures"
        ),
        pytest.param(
            StatusDiff(run=True, units=frozenset({"a"}), moved=frozenset({"b"})),
            {"r": 0.0, "a": 0.0, "b": SLOW_UNIT},
            id="one-unit-changed",
        ),
        pytest.param(
            StatusDiff(run=True, every_unit=True), {"r": 0.0, "a": 0.0, "b": 0.0}, id="the-syncer-came"
        ),
    ],
)
def test_a_report_wakes_what_changed_at_once_and_what_only_has_figures_later(
    diff: StatusDiff, expected: dict[str, float]
) -> None:
    inventory = Inventory()
    for version, name in enumerate(("a", "b"), 1):
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
        inventory.put("LearnerUnit", {"metadata": metadata, "spec": {"run": "r"}})
    assert {key.name: delay for key, delay in report_wakeups(RUN, diff, inventory)} == expected
