"""Which keys are reconciled after a syncer's report."""

from __future__ import annotations

import pytest

from atoll_operator.kube.cache import Key
from atoll_operator.plan.run.status_diff import StatusDiff
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.wakeups import report_wakeups

RUN = Key("TrainingRun", "n", "r")


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        pytest.param(StatusDiff(), [], id="figures-alone"),
        pytest.param(StatusDiff(run=True), ["r"], id="the-run-changed"),
        pytest.param(StatusDiff(run=True, units=frozenset({"a"})), ["r", "a"], id="one-unit-changed"),
        pytest.param(StatusDiff(run=True, every_unit=True), ["r", "a", "b"], id="the-syncer-came"),
    ],
)
def test_a_report_wakes_at_once_what_changed(diff: StatusDiff, expected: list[str]) -> None:
    inventory = Inventory()
    for version, name in enumerate(("a", "b"), 1):
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
        inventory.put("LearnerUnit", {"metadata": metadata, "spec": {"run": "r"}})
    assert [key.name for key in report_wakeups(RUN, diff, inventory)] == expected
