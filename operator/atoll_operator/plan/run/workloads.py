"""The objects of a run: the ConfigMap that every pod reads, and for syncer and evaluator each a headless Service and a
StatefulSet, which gives its pods fixed names for their certificates and for the operator. The syncer has one pod and
one journal volume per shard. The evaluator has one pod without a volume: results are kept in the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from atoll_operator.api import group
from atoll_operator.api.group import EVALUATOR, SYNCER, Object
from atoll_operator.api.sections import EvaluatorSpec, SyncerSpec
from atoll_operator.plan.conditions import document
from atoll_operator.plan.pods import names, template
from atoll_operator.plan.pods.template import digest, said
from atoll_operator.plan.pods.view import PodView, Removal
from atoll_operator.plan.run.observed import RunObserved
from atoll_runtime import contract
from atoll_runtime.contract import EvaluationContract, RunContract, SyncerAddress, SyncerContract

SYNCER_PORTS = {
    "sync": contract.SYNCER_PORT, "status": contract.STATUS_PORT, "health": contract.HEALTH_PORT,
    "transfer": contract.TRANSFER_PORT,
}  # fmt: skip
EVALUATOR_PORTS = {"status": contract.STATUS_PORT, "health": contract.HEALTH_PORT}
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label of a StatefulSet's pods (Kubernetes 1.28)."""
COPIED = ("model", "data", "inner", "outer", "communication", "quorum", "target", "checkpoint")
"""Sections of the spec that pods read as they are."""


def metadata(run: RunObserved, name: str) -> Object:
    """Metadata of an object that the run owns."""
    owner = group.owner(group.RUN_KIND, run.name, run.uid)
    return group.metadata(name, run.namespace, run.name, owner)


def run_contract(run: RunObserved) -> RunContract:
    spec = run.spec
    hosts = [names.shard_host(run.name, run.namespace, shard) for shard in range(spec.syncer.shards)]
    return RunContract(
        name=run.name,
        namespace=run.namespace,
        uid=run.uid,
        shards=tuple(SyncerAddress(host=host) for host in hosts),
        seed=spec.recovery.seed,
        audit=spec.recovery.audit,
        startup_seconds=spec.recovery.startup_seconds,
        tape=spec.syncer.tape,
        **{name: getattr(spec, name) for name in COPIED},
    )


def config_map(run: RunObserved) -> Object:
    named, data = metadata(run, names.config_map(run.name)), {"run.json": contract.brief(run_contract(run))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data}


def batches(run: RunObserved) -> dict[str, tuple[int, ...]]:
    """For `SyncerContract`: the batches of the spec, of units that are not changed yet, and those `_by_hand`. A unit
    that is being deleted has its own entry, because a user may have made it. It may come back with its pool's batch."""
    found = {f"{run.name}-{pool}": {batch} for pool, batch in _of_pools(run).items()}
    for name, unit in run.own_units.items():
        if unit.spec is not None and not unit.by_hand:
            pool = f"{run.name}-{unit.spec.pool}"
            found.setdefault(pool if unit.owned else name, set(found.get(pool, ()))).add(unit.spec.batch)
    for name, batch in _by_hand(run).items():
        found.setdefault(name, set()).add(batch)
    return {name: tuple(sorted(each)) for name, each in sorted(found.items())}


def _of_pools(run: RunObserved) -> dict[str, int]:
    return {pool.name: pool.batch or run.spec.inner.batch for pool in run.spec.pools}


def _by_hand(run: RunObserved) -> dict[str, int]:
    """What the syncer would refuse of units made by hand if it knew the pools' batches alone: the batch of a unit that
    has a name like those of a pool and a larger batch; and as `*`, which is no unit's name, the largest batch of all,
    if it is larger than those of the pools. So most of them come, change and go without a restart."""
    pools = {f"{run.name}-{pool}": batch for pool, batch in _of_pools(run).items()}
    own = {name: unit.spec.batch for name, unit in run.own_units.items() if unit.by_hand and unit.spec}
    found, largest = dict[str, int](), max(own.values(), default=0)
    for name, batch in own.items():
        pool, _, number = name.rpartition("-")
        if number.isdigit() and pools.get(pool, batch) < batch:
            found[name] = batch
    return found | ({"*": largest} if largest > max(pools.values()) else {})


def syncer_objects(run: RunObserved, replicas: int) -> tuple[Object, ...]:
    """Service, StatefulSet and PodDisruptionBudget. Scaling the set to 0 keeps the journals (suspended, failed);
    deleting it deletes them (finished). Each layout has its own folder on the volumes, because a journal of an older
    layout may have the same number of shards but an abandoned history. A shard removes older folders."""
    spec = run.spec.syncer
    environment = {
        contract.ENV_SYNCER: contract.brief(SyncerContract(batches=batches(run))),
        contract.ENV_JOURNAL_DIR: f"{contract.JOURNAL_DIR}/layout-{run.layout}",
        # So a restart does not compile the merge again.
        "NUMBA_CACHE_DIR": f"{contract.JOURNAL_DIR}/compiled",
        # Return large freed arrays to the system: saves a third of the memory at a checkpoint (2026-11-22).
        "MALLOC_MMAP_THRESHOLD_": "262144",
        "MALLOC_TRIM_THRESHOLD_": "262144",
        "JAX_PLATFORMS": "cpu",  # JAX writes checkpoints here; the image's libtpu would look for chips
    }
    main = template.container(run.settings, "atoll_runtime.syncer", environment, spec.resources)
    field = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{POD_INDEX}']"}
    main["env"].append({"name": contract.ENV_SHARD, "valueFrom": {"fieldRef": field}})
    main["volumeMounts"].append({"name": "journal", "mountPath": contract.JOURNAL_DIR})
    claim: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": spec.storage}}}
    if spec.storage_class_name is not None:
        claim["storageClassName"] = spec.storage_class_name
    service, stateful_set = _workload(
        run, SYNCER, spec, main, SYNCER_PORTS, replicas, syncer_digest(run),
        persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Retain"},
        volumeClaimTemplates=[{"metadata": {"name": "journal"}, "spec": claim}],
    )  # fmt: skip
    return service, stateful_set, _budget(service)


def _budget(service: Object) -> Object:
    """Evictions take one shard at a time, because all shards take part in a round. One shard may always be evicted, and
    so may one that is not ready. So a drain waits for the start of a shard, not for the end of the run."""
    pods = {"matchLabels": service["spec"]["selector"]}
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": pods}
    named = dict(service["metadata"])
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": named, "spec": spec}


def syncer_digest(run: RunObserved) -> str:
    """Hash of everything that may change and that the syncer's pods are made of, or read at their start."""
    spec, own = run.spec, run.spec.syncer
    pod = said(own, "resources", "shards", "storage", "storage_class_name")
    read = said(spec.quorum), said(spec.target), said(spec.checkpoint)
    # Nothing if no pool sets a batch, because then it does not change.
    told: list[Object] = [_of_pools(run)] if any(pool.batch for pool in spec.pools) else []
    if by_hand := _by_hand(run):
        told.append({"byHand": by_hand})
    return digest(run.settings, pod, said(own.resources), *read, *told)


def evaluator_objects(run: RunObserved, replicas: int | None) -> tuple[Object, ...]:
    """Service and StatefulSet; nothing if `replicas` is None."""
    spec = run.spec.evaluation
    if spec is None or replicas is None:
        return ()
    shared = contract.EvaluationSpec.model_fields
    evaluation = EvaluationContract(**{name: getattr(spec, name) for name in shared})
    environment = {contract.ENV_EVALUATION: contract.brief(evaluation), "JAX_PLATFORMS": "cpu"}
    main = template.container(run.settings, "atoll_runtime.evaluator", environment, spec.resources)
    main["image"] = spec.image or main["image"]
    made_of = digest(run.settings, said(spec, "resources", "final_seconds"), said(spec.resources))
    return _workload(run, EVALUATOR, spec, main, EVALUATOR_PORTS, replicas, made_of)


def _workload(
    run: RunObserved,
    component: str,
    spec: SyncerSpec | EvaluatorSpec,
    main: Object,
    ports: Mapping[str, int],
    replicas: int,
    digest: str,
    **more: Any,
) -> tuple[Object, Object]:
    """Service and StatefulSet; `more` are further fields of the latter's spec. `digest` covers what the pods are made
    of and read at their start: a pod with another digest is replaced."""
    settings, name = run.settings, f"{run.name}-{component}"
    selector = {group.LABEL_RUN: run.name, group.LABEL_COMPONENT: component}
    named = metadata(run, name)
    named["labels"] |= selector
    main["ports"] = template.container_ports(ports)
    main |= {
        "startupProbe": _probe("/healthz", period=2, failures=150),  # it may take 5 min to start
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
    }
    pod = template.pod_spec(settings, name, main)
    pod["nodeSelector"] = dict(spec.node_selector)
    tolerations = map(document, spec.tolerations)
    pod["tolerations"] = [*template.lost_nodes(template.LEAVE_SECONDS), *tolerations]
    pod_metadata = template.pod_metadata(settings, named["labels"], {group.ANNOTATION_CONTRACT: digest})
    set_spec = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": selector},
        "template": {"metadata": pod_metadata, "spec": pod},
        **more,
    }
    stateful_set = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": named, "spec": set_spec}
    return template.headless(dict(named), selector, ports), stateful_set


def _probe(path: str, period: int, failures: int) -> Object:
    probe = {"httpGet": {"path": path, "port": "health"}, "periodSeconds": period}
    return {**probe, "timeoutSeconds": 5, "failureThreshold": failures}


def outdated(pods: Sequence[PodView], workload: Iterable[Object]) -> Iterator[Removal]:
    """Pods to delete now because they were made from an older template: all of these that are not ready, or else one of
    them if all pods are ready. A pod without a hash is not from a template and is left alone."""
    for spec in (
        body["spec"] for body in workload if body["kind"] == "StatefulSet" and body["spec"]["replicas"]
    ):
        wanted = spec["template"]["metadata"]["annotations"][group.ANNOTATION_CONTRACT]
        old = [pod for pod in pods if pod.contract not in ("", wanted) and pod.deletion_time is None]
        whole = len(pods) == spec["replicas"] and all(pod.ready and pod.deletion_time is None for pod in pods)
        idle = [pod for pod in old if not pod.ready]
        last = sorted(old, key=lambda pod: (len(pod.name), pod.name))[-1:] if whole else []
        yield from (Removal(pod.name, pod.uid, template.GRACE_SECONDS) for pod in idle or last)
