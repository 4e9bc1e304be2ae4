"""The objects that a run owns besides its units: configuration, syncer, evaluator."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_operator.api.group import LABEL_MANAGER, LABEL_RUN, MANAGER, RUN_KIND, Object, owner
from atoll_operator.plan.pods import evaluator, syncer
from atoll_operator.plan.pods.names import config_map, shard_host
from atoll_operator.plan.pods.settings import digest, said
from atoll_operator.plan.run.observed import RunObserved
from atoll_runtime.contract import RunContract, SyncerAddress, brief


def run_labels(name: str) -> dict[str, str]:
    """Labels of every object of this run."""
    return {LABEL_MANAGER: MANAGER, LABEL_RUN: name}


def contract(run: RunObserved) -> RunContract:
    """The contract that every pod of the run reads."""
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


def objects(run: RunObserved, replicas: int, layout: int) -> Iterator[Object]:
    """ConfigMap, and Service and StatefulSet of the syncer; 0 replicas keep the journals of this layout."""
    owners = [owner(RUN_KIND, run.name, run.uid)]
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map(run.name),
            "namespace": run.namespace,
            "labels": run_labels(run.name),
            "ownerReferences": owners,
        },
        "data": {"run.json": brief(contract(run))},
    }
    yield from syncer.objects(
        run.settings, run.namespace, owners, run.spec.syncer, replicas, layout, syncer_digest(run)
    )


def evaluator_objects(run: RunObserved, replicas: int | None) -> Iterator[Object]:
    """Service and StatefulSet of the evaluator; nothing if `replicas` is None."""
    spec, owners = run.spec.evaluation, [owner(RUN_KIND, run.name, run.uid)]
    if spec is not None and replicas is not None:
        yield from evaluator.objects(
            run.settings, run.namespace, owners, spec, replicas, evaluator_digest(run)
        )


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
