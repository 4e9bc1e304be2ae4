"""The objects that a run owns: configuration, syncer, evaluator, and the metadata of its units."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_operator.api.group import LABEL_MANAGER, LABEL_RUN, MANAGER, RUN_KIND, Object, owner
from atoll_operator.plan.pods import workloads
from atoll_operator.plan.pods.names import config_map, shard_host
from atoll_operator.plan.pods.settings import digest, said
from atoll_operator.plan.run.observed import RunObserved
from atoll_runtime.contract import RunContract, SyncerAddress, brief

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
    yield from workloads.syncer_objects(
        run.settings, run.namespace, _owners(run), run.spec.syncer, replicas, layout, syncer_digest(run)
    )


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
    return digest(run.settings, pod, said(own.resources), *read)


def evaluator_digest(run: RunObserved) -> str:
    """Hash of everything that the evaluator's pod is made of."""
    spec = run.spec.evaluation
    if spec is None:
        return ""
    return digest(run.settings, said(spec, "resources", "final_seconds"), said(spec.resources))
