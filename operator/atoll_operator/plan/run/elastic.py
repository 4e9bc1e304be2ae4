"""`pools` and `units`: how many units each pool has, which stream of the data each unit reads, and their specs. A unit
keeps its stream while other units come and go, and gets it back if it comes back itself. So running units are not
touched, and a unit that was scaled away continues where it stopped. `atoll_runtime.data.stream` says how much of an
epoch a finer division repeats. While a unit is away, its stream is not read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from atoll_operator.api.common import Toleration
from atoll_operator.api.group import API_VERSION, SPOT, UNIT_KIND, Object
from atoll_operator.api.learnerunit import MAX_STREAM, LearnerUnitSpec
from atoll_operator.api.sections import Pool
from atoll_operator.api.trainingrun import StreamRange, StreamsStatus, TrainingRunSpec
from atoll_operator.plan.conditions import document
from atoll_operator.plan.limits import sizes
from atoll_operator.plan.pods.names import unit_name
from atoll_operator.plan.run.observed import RunObserved
from atoll_operator.plan.run.workloads import metadata

FLEX_START = "cloud.google.com/gke-flex-start"
RESERVATION = "cloud.google.com/reservation-name"
_CAPACITY = {"Spot": SPOT, "FlexStart": FLEX_START}
"""Labels of nodes by their capacity; GKE's label and taint have the same key and value. Source: GKE's cluster
autoscaler; xpk selects reservations by the same label. Nodes of queued provisioning (`cloud.google.com/gke-queued`) are
not covered: a pool selects them with `nodeSelector` and `tolerations`."""
Place = tuple[str, int]
"""Pool and index of a unit."""


def places(run: str, spec: TrainingRunSpec) -> Mapping[str, Place]:
    """Wanted units by name. They are sorted by pool name, so that reordering the pools does not change streams."""
    return _places(run, tuple(sorted(sizes(spec).items())))


@lru_cache(maxsize=16)
def _places(run: str, sizes: tuple[tuple[str, int], ...]) -> Mapping[str, Place]:
    return MappingProxyType(
        {unit_name(run, pool, index): (pool, index) for pool, units in sizes for index in range(units)}
    )


def certified_units(run: RunObserved) -> dict[str, str]:
    """Units that get a certificate: uids of units created by users, by name; empty strings for the run's own."""
    wanted = places(run.name, run.spec)
    return {
        unit.name: "" if unit.owned else unit.uid
        for unit in run.units.values()
        if unit.run == run.name and (unit.by_hand or (unit.owned and unit.name in wanted))
    }


def run_streams(run: RunObserved) -> StreamsStatus:
    """Streams of all units that are wanted, and of those that once were."""
    wanted = places(run.name, run.spec)
    known = {
        wanted[unit.name]: (unit.spec.stream, unit.spec.streams)
        for unit in run.units.values()
        if unit.owned and unit.spec is not None and unit.name in wanted
    }
    taken = {unit.spec.stream for unit in run.units.values() if unit.by_hand and unit.spec is not None}
    return deal(run.status.streams, known, list(wanted.values()), taken)


def unit_specs(run: RunObserved) -> dict[str, LearnerUnitSpec]:
    """Of each unit that is wanted, without its stream: the units of a pool share one."""
    specs = {pool.name: _unit_spec(run, pool) for pool in run.spec.pools}
    return {name: specs[pool] for name, (pool, _) in places(run.name, run.spec).items()}


def unit_bodies(
    run: RunObserved, specs: Mapping[str, LearnerUnitSpec], streams: StreamsStatus
) -> tuple[Object, ...]:
    """The units of these names, with their streams."""
    numbers = table(streams)
    stream = {name: numbers[place] for name, place in places(run.name, run.spec).items() if name in specs}
    of_pool = {spec.pool: spec for spec in specs.values()}
    # Written once for all pools, because it may have hundreds of KiB.
    template = document(run.spec, include={"pod_template"})
    documents = {pool: document(spec, exclude={"pod_template"}) | template for pool, spec in of_pool.items()}
    return tuple(
        {
            "apiVersion": API_VERSION,
            "kind": UNIT_KIND,
            "metadata": metadata(run, name),
            "spec": documents[spec.pool]
            | {"stream": stream[name], "streams": division(stream[name], streams.base)},
        }
        for name, spec in specs.items()
    )


def _unit_spec(run: RunObserved, pool: Pool) -> LearnerUnitSpec:
    labels, tolerations = capacity(pool)
    return LearnerUnitSpec(
        run=run.name,
        pool=pool.name,
        slices=pool.slices_per_unit,
        batch=pool.batch or run.spec.inner.batch,
        stream=0,
        streams=1,
        image=run.spec.image or run.settings.image,
        node_selector={**pool.node_selector, **labels},
        tolerations=(*pool.tolerations, *tolerations),
        **{name: getattr(pool, name) for name in ("accelerator", "topology", "machine_type", "resources")},
        **{name: getattr(run.spec, name) for name in ("pod_template", "queue_name", "queue_priority_class")},
    )


def division(stream: int, base: int) -> int:
    """The coarsest division base · 2ᵏ that has this stream."""
    return base << (stream // base).bit_length()


def deal(
    old: StreamsStatus | None,
    known: Mapping[Place, tuple[int, int]],
    wanted: Sequence[Place],
    others: Collection[int] = (),
) -> StreamsStatus:
    """Give every wanted place a stream, in their order; places that are no longer wanted keep theirs. `known` are
    stream and division of existing units, which the status may lack if a write failed; `others` are streams of units
    created by users, which are not dealt again."""
    first = min((streams for _, streams in known.values()), default=max(len(wanted), 1))
    base = first if old is None else old.base
    before = table(old)
    dealt = {place: stream for place, (stream, _) in known.items()} | before
    if len(dealt.keys() | set(wanted)) > MAX_STREAM + 1:  # twice what a run may have at once
        pools = {pool for pool, _ in wanted}
        dealt = {place: stream for place, stream in dealt.items() if place in known or place[0] in pools}
    if old is not None and dealt == before and dealt.keys() >= set(wanted):
        return old
    taken = {*dealt.values(), *others}
    free = (stream for stream in range(MAX_STREAM + 1) if stream not in taken)
    for place in wanted:
        if place not in dealt:
            dealt[place] = next(free)
    return StreamsStatus(base=base, dealt=tuple(_ranges(dealt)))


def table(status: StreamsStatus | None) -> dict[Place, int]:
    ranges = status.dealt if status is not None else ()
    return {
        (each.pool, each.index + offset): each.stream + offset
        for each in ranges
        for offset in range(each.units)
    }


def _ranges(dealt: Mapping[Place, int]) -> list[StreamRange]:
    """The table by pool, with consecutive units joined."""
    ranges: list[tuple[str, int, int, int]] = []
    for (pool, index), stream in sorted(dealt.items()):
        name, first, begin, units = ranges[-1] if ranges else ("", 0, 0, 0)
        if (pool, index, stream) == (name, first + units, begin + units):
            ranges[-1] = name, first, begin, units + 1
        else:
            ranges.append((pool, index, stream, 1))
    return [StreamRange(pool=pool, index=at, stream=begin, units=units) for pool, at, begin, units in ranges]


def capacity(pool: Pool) -> tuple[dict[str, str], tuple[Toleration, ...]]:
    """Labels of the pool's nodes, and tolerations for their taints. On-demand nodes have neither for their capacity."""
    if pool.reservation_name is not None:
        return {RESERVATION: pool.reservation_name}, ()
    if (label := _CAPACITY.get(pool.capacity)) is None:
        return {}, ()
    return {label: "true"}, (Toleration(key=label, value="true", effect="NoSchedule"),)
