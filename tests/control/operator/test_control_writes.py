"""What a write does to an object, with the operator's own rights: all of it or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from control_bench import Bench
from objects import TWO_HOSTS

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.cluster import Cluster
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.login import load
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.conditions import document

pytestmark = pytest.mark.timeout(300)
HEALING = document(LearnerUnitStatus(phase="Healing", incarnation=3, heal_start_time="2026-11-23T08:00:00Z"))
LEARNING = document(LearnerUnitStatus(phase="Learning", incarnation=3))
NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
async def cluster(operator_kubeconfig: Path) -> AsyncIterator[Cluster]:
    async with Cluster(load({"KUBECONFIG": str(operator_kubeconfig)}), Metrics()) as one:
        yield one


def unit(bench: Bench) -> dict[str, Any]:
    spec = TWO_HOSTS.model_dump(mode="json", by_alias=True, exclude_none=True)
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "LearnerUnit"}
    return bench.create({**kind, "metadata": {"name": "u"}, "spec": spec})


async def test_a_status_is_written_whole_over_the_seen_version_alone(bench: Bench, cluster: Cluster) -> None:
    old = unit(bench)
    healing = await cluster.write_status(old, HEALING)
    healed = await cluster.write_status(healing, LEARNING)
    assert bench.get("LearnerUnit", "u") == healed
    assert healed["status"] == LEARNING, "fields that it does not have any more are gone"
    assert (healed["spec"], healed["metadata"]["generation"]) == (old["spec"], 1)
    for body in (old, {**healed, "metadata": healed["metadata"] | {"uid": NOBODY}}):
        with pytest.raises(Conflict):
            await cluster.write_status(body, HEALING)
    assert (await cluster.write_status(healed, LEARNING | {"gangs": 4}))["status"] == LEARNING
    bench.delete("LearnerUnit", "u")
    with pytest.raises(NotFound):
        await cluster.write_status(healed, LEARNING)


async def test_another_object_of_the_same_name_is_not_annotated(bench: Bench, cluster: Cluster) -> None:
    told, uid = {"seen": "7"}, unit(bench)["metadata"]["uid"]
    with pytest.raises(Conflict):
        await cluster.patch_metadata("LearnerUnit", bench.namespace, "u", "another", annotations=told)
    with pytest.raises(NotFound):
        await cluster.patch_metadata("LearnerUnit", bench.namespace, "v", uid, annotations=told)
    assert "annotations" not in bench.get("LearnerUnit", "u")["metadata"]
    await cluster.patch_metadata("LearnerUnit", bench.namespace, "u", uid, annotations=told)
    assert bench.get("LearnerUnit", "u")["metadata"]["annotations"] == told
