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
from atoll_operator.api.pool import Pool
from atoll_operator.api.trainingrun import StreamsStatus, TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.conditions import find, is_true
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods import capacity, evaluator, syncer
from atoll_operator.plan.pods.evaluator import EvaluatorState
from atoll_operator.plan.pods.names import config_map, shard_host, unit_name
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.template_hash import digest, said
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.pools import names, slots
from atoll_operator.plan.run.shards import CutOrder, FeedState
from atoll_operator.plan.run.streams import deal, streams_of, table
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE
from atoll_operator.plan.unit.kueue import QUEUED
from atoll_runtime.contract import RunContract, SyncerAddress, brief

GANG_PHASES = ("Scheduling", "Starting", "Joining", "Learning")
"""Of a unit whose gang is there, or on its way."""
PATIENCE_SECONDS = 600.0
"""After which a unit that has lost the syncer, or finds no hosts, is not counted on. Every resync looks at it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """One LearnerUnit, as the run sees it."""

    name: str
    run: str
    status: LearnerUnitStatus
    spec: LearnerUnitSpec | None = None
    """None where it cannot be read by this version."""
    uid: str = ""
    owned: bool = True
    """By this run and not being deleted."""
    by_hand: bool = False
    """Somebody made it, and nobody deletes it: it learns like the others, and is not ours to change or to delete."""
    generation: int = 0
    ours: bool = True
    """Made by this run or by hand, also while it is being deleted; else an earlier run's of the same name."""

    @property
    def learning(self) -> bool:
        """With the spec that it has now."""
        return self.status.observed_generation == self.generation and is_true(
            self.status.conditions, "Learning"
        )

    def idle(self, serving_since: float | None, now: float) -> bool:
        """Nothing is lost with its pods: it has none, or they have not been merged yet, or not for ten minutes.

        Not learning alone is no sign of that: for seconds no unit does whenever the syncer comes back from a restart.

        Args:
            serving_since: Unix seconds since which the whole syncer serves; None: it does not.
        """
        if self.learning:
            return False
        status, learning = self.status, find(self.status.conditions, "Learning")
        merged = status.phase in GANG_PHASES and 0 < status.merged_incarnation == status.incarnation
        if not merged or learning is None:
            return True
        if learning.status != "False" or serving_since is None:
            return False
        return max(parse_time(learning.last_transition_time), serving_since) + PATIENCE_SECONDS <= now

    def homeless(self, now: float) -> bool:
        """For ten minutes it has waited for hosts."""
        scheduled = find(self.status.conditions, "Scheduled")
        return (
            scheduled is not None
            and scheduled.reason in (CAPACITY_UNAVAILABLE, QUEUED)
            and parse_time(scheduled.last_transition_time) + PATIENCE_SECONDS <= now
        )


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
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    """Those that the pods of syncer and evaluator are on, as far as the operator may see them."""
    feed: FeedState = field(default_factory=FeedState)
    seen: float | None = None
    """Unix seconds at which this operator saw it first; None: now."""
    cut: CutOrder | None = None
    """What the syncer was asked to save before the run is suspended."""
    evaluator: EvaluatorState = field(default_factory=EvaluatorState)
    evaluator_pods: tuple[PodView, ...] = ()
    evaluator_there: bool = False
    """Whether its StatefulSet is."""


def members(run: RunObserved) -> dict[str, str]:
    """Units that need a certificate: name to uid of those made by hand, to an empty string of the run's own."""
    wanted = set(names(run.name, run.spec))
    return {
        unit.name: "" if unit.owned else unit.uid
        for unit in run.units.values()
        if unit.run == run.name and (unit.by_hand or (unit.owned and unit.name in wanted))
    }


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
        startup_seconds=spec.recovery.startup_seconds,
        tape=spec.syncer.tape,
    )


def dealt(run: RunObserved) -> StreamsStatus:
    """The streams of all units that are wanted, and of those that were."""
    places = {unit_name(run.name, *slot): slot for slot in slots(run.spec)}
    known = {
        places[unit.name]: (unit.spec.stream, unit.spec.streams)
        for unit in run.units.values()
        if unit.owned and unit.spec is not None and unit.name in places
    }
    taken = {unit.spec.stream for unit in run.units.values() if unit.by_hand and unit.spec is not None}
    return deal(run.status.streams, known, list(places.values()), taken)


def unit_specs(run: RunObserved, streams: StreamsStatus) -> dict[str, LearnerUnitSpec]:
    """Every LearnerUnit that is wanted, by name."""
    numbers = table(streams)
    specs = {pool.name: _unit_spec(run, pool) for pool in run.spec.pools}
    return {
        unit_name(run.name, *slot): specs[slot[0]].model_copy(
            update={"stream": numbers[slot], "streams": streams_of(numbers[slot], streams.base)}
        )
        for slot in slots(run.spec)
    }


def unit_body(run: RunObserved, name: str, spec: LearnerUnitSpec) -> Object:
    """A LearnerUnit as it is applied."""
    return {
        "apiVersion": API_VERSION,
        "kind": UNIT_KIND,
        "metadata": {
            "name": name,
            "namespace": run.namespace,
            "labels": _labels(run.name),
            "ownerReferences": _owners(run),
        },
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def _unit_spec(run: RunObserved, pool: Pool) -> LearnerUnitSpec:
    """Of every unit of the pool, which has yet to be given its stream."""
    return LearnerUnitSpec(
        run=run.name,
        pool=pool.name,
        accelerator=pool.accelerator,
        topology=pool.topology,
        machine_type=pool.machine_type,
        slices=pool.slices_per_unit,
        batch=pool.batch or run.spec.inner.batch,
        stream=0,
        streams=1,
        image=run.spec.image or run.settings.image,
        node_selector={**pool.node_selector, **capacity.selector(pool)},
        tolerations=(*pool.tolerations, *capacity.tolerations(pool)),
        resources=pool.resources,
        pod_template=run.spec.pod_template,
        queue_name=run.spec.queue_name,
        queue_priority_class=run.spec.queue_priority_class,
    )


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
        "data": {"run.json": brief(contract(run))},
    }
    yield syncer.service(run.name, run.namespace, owners)
    yield syncer.stateful_set(
        run.name,
        run.namespace,
        owners,
        run.spec.syncer,
        run.settings,
        replicas,
        layout,
        syncer_digest(run),
    )


def evaluator_objects(run: RunObserved, replicas: int | None) -> Iterator[Object]:
    """Service and StatefulSet; none for None."""
    spec, owners = run.spec.evaluation, _owners(run)
    if spec is not None and replicas is not None:
        yield evaluator.service(run.name, run.namespace, owners)
        made_of = evaluator_digest(run)
        yield evaluator.stateful_set(run.name, run.namespace, owners, spec, run.settings, replicas, made_of)


def syncer_digest(run: RunObserved) -> str:
    """Of all that may change in a run and that its syncer's pods are made of, or read once."""
    spec, own = run.spec, run.spec.syncer
    pod = said(own, "resources", "shards", "storage", "storage_class_name")
    read = said(spec.quorum), said(spec.target), said(spec.checkpoint)
    return digest(run.settings, pod, said(own.resources), *read)


def evaluator_digest(run: RunObserved) -> str:
    """Of all that the evaluator's pod is made of."""
    spec = run.spec.evaluation
    if spec is None:
        return ""
    return digest(run.settings, said(spec, "resources", "final_seconds"), said(spec.resources))
