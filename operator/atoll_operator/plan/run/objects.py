"""The objects that a run owns: configuration, syncer, evaluator, and the metadata of its units."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_operator.api.group import LABEL_MANAGER, LABEL_RUN, MANAGER, RUN_KIND, Object, owner
from atoll_operator.plan.pods import workloads
from atoll_operator.plan.pods.names import config_map, shard_host, unit_name
from atoll_operator.plan.pods.settings import digest, said
from atoll_operator.plan.run.observed import RunObserved
from atoll_runtime.contract import RunContract, SyncerAddress, SyncerContract, brief

COPIED = ("model", "data", "inner", "outer", "quorum", "target", "checkpoint")
"""Sections of the spec that pods read as they are."""


def metadata(run: RunObserved, name: str) -> Object:
    """Of an object that the run owns."""
    labels, owners = {LABEL_MANAGER: MANAGER, LABEL_RUN: run.name}, _owners(run)
    return {"name": name, "namespace": run.namespace, "labels": labels, "ownerReferences": owners}


def _owners(run: RunObserved) -> list[Object]:
    return [owner(RUN_KIND, run.name, run.uid)]


def contract(run: RunObserved) -> RunContract:
    """The contract that every pod of the run reads."""
    spec = run.spec
    hosts = [shard_host(run.name, run.namespace, shard) for shard in range(spec.syncer.shards)]
    return RunContract(
        name=run.name,
        namespace=run.namespace,
        uid=run.uid,
        shards=tuple(SyncerAddress(host=host) for host in hosts),
        seed=spec.recovery.seed,
        startup_seconds=spec.recovery.startup_seconds,
        tape=spec.syncer.tape,
        **{name: getattr(spec, name) for name in COPIED},
    )


def objects(run: RunObserved, replicas: int, layout: int) -> Iterator[Object]:
    """ConfigMap, and Service and StatefulSet of the syncer; 0 replicas keep the journals of this layout."""
    named, data = metadata(run, config_map(run.name)), {"run.json": brief(contract(run))}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data}
    owners, made_of, told = _owners(run), syncer_digest(run), SyncerContract(batches=batches(run))
    yield from workloads.syncer_objects(
        run.settings, run.namespace, owners, run.spec.syncer, replicas, layout, made_of, told
    )


def batches(run: RunObserved) -> dict[str, tuple[int, ...]]:
    """See `SyncerContract`: what the spec wants, and what units have that are not changed yet."""
    wanted = {pool.name: pool.batch or run.spec.inner.batch for pool in run.spec.pools}
    found = {f"{run.name}-{pool}": {batch} for pool, batch in wanted.items()}
    for name, unit in run.own_units.items():
        if unit.spec is not None:
            pool = unit_name(run.name, unit.spec.pool, 0).removesuffix("-0")
            found.setdefault(pool if unit.owned else name, set()).add(unit.spec.batch)
    return {name: tuple(sorted(each)) for name, each in sorted(found.items())}


def evaluator_objects(run: RunObserved, replicas: int | None) -> Iterator[Object]:
    """Service and StatefulSet of the evaluator; nothing if `replicas` is None."""
    spec, made_of = run.spec.evaluation, evaluator_digest(run)
    if spec is not None and replicas is not None:
        owners = _owners(run)
        yield from workloads.evaluator_objects(run.settings, run.namespace, owners, spec, replicas, made_of)


def syncer_digest(run: RunObserved) -> str:
    """Hash of everything that may change and that the syncer's pods are made of, or read at their start."""
    spec, own = run.spec, run.spec.syncer
    pod = said(own, "resources", "shards", "storage", "storage_class_name")
    read = said(spec.quorum), said(spec.target), said(spec.checkpoint)
    # Of pools that set none, nothing: their batch does not change.
    own_batches = {pool.name: pool.batch for pool in spec.pools if pool.batch is not None}
    return digest(run.settings, pod, said(own.resources), *read, *([own_batches] if own_batches else []))


def evaluator_digest(run: RunObserved) -> str:
    """Hash of everything that the evaluator's pod is made of."""
    spec = run.spec.evaluation
    if spec is None:
        return ""
    return digest(run.settings, said(spec, "resources", "final_seconds"), said(spec.resources))
