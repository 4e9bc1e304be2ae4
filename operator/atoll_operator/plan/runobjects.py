"""The objects of a run: configuration, syncer, units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from atoll_operator.api.group import (
    API_VERSION,
    LABEL_MANAGER,
    LABEL_RUN,
    MANAGER,
    RUN_KIND,
    UNIT_KIND,
    Object,
    owner,
)
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import Pool, TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan import syncer
from atoll_operator.plan.names import config_map, shard_host, unit_name
from atoll_operator.plan.observe import PodView
from atoll_operator.plan.podspec import PodSettings
from atoll_operator.plan.shards import FeedState
from atoll_runtime.contract import RunContract, SyncerAddress, dump

CAPACITY: Mapping[str, Mapping[str, str]] = {
    "OnDemand": {},
    "Spot": {"cloud.google.com/gke-spot": "true"},
    "Reservation": {},
}
RESERVATION = "cloud.google.com/reservation-name"
SPOT_TAINT = {
    "key": "cloud.google.com/gke-spot",
    "operator": "Equal",
    "value": "true",
    "effect": "NoSchedule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """One LearnerUnit, as the run sees it."""

    name: str
    run: str
    status: LearnerUnitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObserved:
    """One run as it is."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: TrainingRunSpec
    status: TrainingRunStatus
    settings: PodSettings
    units: Mapping[str, UnitFacts]
    """By name: all LearnerUnits of the namespace that carry one of this run's names or name this run."""
    syncer_pods: tuple[PodView, ...] = ()
    feed: FeedState = field(default_factory=FeedState)


def pod_settings(
    name: str, spec: TrainingRunSpec, image: str, pull_policy: str, environment: Mapping[str, str]
) -> PodSettings:
    """The run's own image, else the operator's default."""
    return PodSettings(
        run=name,
        image=spec.image or image,
        pull_policy=pull_policy,
        environment=environment,
        service_account=spec.service_account_name,
    )


def contract(run: RunObserved) -> RunContract:
    """What every pod of the run is told."""
    spec = run.spec
    return RunContract(
        name=run.name,
        namespace=run.namespace,
        uid=run.uid,
        model=spec.model,
        data=spec.data,
        inner=spec.inner,
        outer=spec.outer,
        quorum=spec.quorum,
        target=spec.target,
        checkpoint=spec.checkpoint,
        shards=tuple(
            SyncerAddress(host=shard_host(run.name, run.namespace, shard))
            for shard in range(spec.syncer.shards)
        ),
        seed=spec.recovery.seed,
        tape=spec.syncer.tape,
    )


def unit_bodies(run: RunObserved) -> Iterator[Object]:
    """The LearnerUnits of all pools. Streams are dealt in order of pool names, which an edit cannot change."""
    streams = sum(pool.units for pool in run.spec.pools)
    stream = 0
    for pool in sorted(run.spec.pools, key=lambda item: item.name):
        for index in range(pool.units):
            yield {
                "apiVersion": API_VERSION,
                "kind": UNIT_KIND,
                "metadata": {
                    "name": unit_name(run.name, pool.name, index),
                    "namespace": run.namespace,
                    "labels": _labels(run.name),
                    "ownerReferences": _owners(run),
                },
                "spec": _unit_spec(run, pool, stream, streams),
            }
            stream += 1


def _unit_spec(run: RunObserved, pool: Pool, stream: int, streams: int) -> Object:
    spec = LearnerUnitSpec(
        run=run.name,
        pool=pool.name,
        accelerator=pool.accelerator,
        topology=pool.topology,
        machine_type=pool.machine_type,
        batch=pool.batch or run.spec.inner.batch,
        stream=stream,
        streams=streams,
        node_selector={
            **pool.node_selector,
            **CAPACITY[pool.capacity],
            **({RESERVATION: pool.reservation_name} if pool.reservation_name else {}),
        },
        tolerations=pool.tolerations,
        resources=pool.resources,
    )
    document: Object = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    if pool.capacity == "Spot":
        document["tolerations"].append(SPOT_TAINT)
    return document


def _labels(name: str) -> dict[str, str]:
    return {LABEL_MANAGER: MANAGER, LABEL_RUN: name}


def _owners(run: RunObserved) -> list[Object]:
    return [owner(RUN_KIND, run.name, run.uid)]


def objects(run: RunObserved, replicas: int, layout: int) -> Iterator[Object]:
    """ConfigMap, Service and StatefulSet; 0 replicas keep the journals of this layout without a syncer."""
    owners = _owners(run)
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map(run.name),
            "namespace": run.namespace,
            "labels": _labels(run.name),
            "ownerReferences": owners,
        },
        "data": {"run.json": dump(contract(run))},
    }
    yield syncer.service(run.name, run.namespace, owners)
    yield syncer.stateful_set(
        run.name, run.namespace, owners, run.spec.syncer, run.settings, replicas, layout
    )
