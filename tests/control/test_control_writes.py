"""What a write of a status does to an object, with the operator's own rights: all of it or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from objects import TWO_HOSTS

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.cluster import Cluster
from atoll_operator.kube.errors import Conflict, NotFound, Refused
from atoll_operator.kube.login import load
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.conditions import document

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
HEALING = document(LearnerUnitStatus(phase="Healing", incarnation=3, heal_start_time="2026-11-23T08:00:00Z"))
LEARNING = document(LearnerUnitStatus(phase="Learning", incarnation=3))


@pytest.fixture
async def cluster(operator_kubeconfig: Path) -> AsyncIterator[Cluster]:
    async with Cluster(load({"KUBECONFIG": str(operator_kubeconfig)}), Metrics()) as one:
        yield one


def unit(bench: Any) -> dict[str, Any]:
    """One of no run, as the API server has it."""
    spec = TWO_HOSTS.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "LearnerUnit",
        "metadata": {"name": "u"},
        "spec": spec,
    }
    made: dict[str, Any] = bench.api.create(body, bench.namespace)
    return made


async def test_a_status_is_as_written_as_a_whole_and_nothing_else_changes(bench, cluster) -> None:
    old = unit(bench)
    healing = await cluster.write_status(old, HEALING)
    healed = await cluster.write_status(healing, LEARNING)
    assert bench.get("LearnerUnit", "u") == healed
    assert healed["status"] == LEARNING, "what it does not say any more is gone"
    assert (healed["spec"], healed["metadata"]["generation"]) == (old["spec"], 1)


async def test_a_status_is_written_over_the_version_that_was_seen_alone(bench, cluster) -> None:
    old = unit(bench)
    new = await cluster.write_status(old, HEALING)
    another = {**new, "metadata": new["metadata"] | {"uid": "00000000-0000-0000-0000-000000000000"}}
    for body in (old, another):
        with pytest.raises(Conflict):
            await cluster.write_status(body, LEARNING)
    assert bench.get("LearnerUnit", "u")["status"] == HEALING
    bench.api.delete("LearnerUnit", bench.namespace, "u")
    with pytest.raises(NotFound):
        await cluster.write_status(new, LEARNING)


async def test_a_field_that_the_definition_lacks_is_refused_by_name(bench, cluster) -> None:
    """A newer operator must not lose in silence what its plans rest on."""
    with pytest.raises(Refused, match=r"status\.gangs"):
        await cluster.write_status(unit(bench), LEARNING | {"gangs": 4})
    assert "status" not in bench.get("LearnerUnit", "u")
