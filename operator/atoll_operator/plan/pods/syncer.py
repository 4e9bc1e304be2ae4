"""The syncer's objects: a headless Service, and a StatefulSet with one pod and one journal volume per shard."""

from __future__ import annotations

from atoll_operator.api.group import (
    ANNOTATION_CONTRACT,
    LABEL_COMPONENT,
    LABEL_MANAGER,
    LABEL_RUN,
    MANAGER,
    SYNCER,
    Object,
)
from atoll_operator.api.sections import SyncerSpec
from atoll_operator.plan.pods.names import syncer
from atoll_operator.plan.pods.template import (
    LOST_NODES,
    PodSettings,
    container,
    headless,
    literals,
    pod_metadata,
    pod_spec,
    probes,
)
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_SHARD,
    HEALTH_PORT,
    JOURNAL_DIR,
    STATUS_PORT,
    SYNCER_PORT,
)

POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label of a StatefulSet's pods (Kubernetes 1.28)."""


def labels(run: str) -> dict[str, str]:
    return {LABEL_MANAGER: MANAGER, LABEL_RUN: run, LABEL_COMPONENT: SYNCER}


def service(run: str, namespace: str, owners: list[Object]) -> Object:
    ports = {"sync": SYNCER_PORT, "status": STATUS_PORT, "health": HEALTH_PORT}
    return headless(syncer(run), namespace, labels(run), owners, ports)


def stateful_set(
    run: str,
    namespace: str,
    owners: list[Object],
    spec: SyncerSpec,
    settings: PodSettings,
    replicas: int,
    layout: int,
    contract: str = "",
) -> Object:
    """The StatefulSet. Scaling it to 0 keeps the journals (suspended, failed); deleting it deletes them (finished).

    Args:
        layout: number of changes of `spec.shards`. Each layout has its own folder on the volumes, because a journal of
            an older layout may have the same number of shards but an abandoned history. A shard removes older folders.
        contract: hash of what the pods are made of and read at their start; pods with another hash are replaced
            (`template_hash.py`).
    """
    main = container(
        settings,
        command=["python", "-m", "atoll_runtime.syncer"],
        environment={
            ENV_JOURNAL_DIR: f"{JOURNAL_DIR}/layout-{layout}",
            "NUMBA_CACHE_DIR": f"{JOURNAL_DIR}/compiled",  # so that a restart does not compile the merge again
            # Return large freed arrays to the system: saves a third of the memory at a checkpoint (2026-11-22).
            "MALLOC_MMAP_THRESHOLD_": "262144",
            "MALLOC_TRIM_THRESHOLD_": "262144",
            "JAX_PLATFORMS": "cpu",  # JAX writes checkpoints here; the image's libtpu would look for chips
        },
        resources=spec.resources,
        extra_resources={},
    )
    field = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{POD_INDEX}']"}
    main["env"] = [*main["env"], {"name": ENV_SHARD, "valueFrom": {"fieldRef": field}}]
    main["ports"] = [
        {"name": "sync", "containerPort": SYNCER_PORT},
        {"name": "status", "containerPort": STATUS_PORT},
        {"name": "health", "containerPort": HEALTH_PORT},
    ]
    main["volumeMounts"] = [*main["volumeMounts"], {"name": "journal", "mountPath": JOURNAL_DIR}]
    main |= probes("health")
    pod = pod_spec(settings, syncer(run), main)
    pod["nodeSelector"] = dict(spec.node_selector)
    pod["tolerations"] = [*LOST_NODES, *(literals(item) for item in spec.tolerations)]
    claim: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": spec.storage}}}
    if spec.storage_class_name is not None:
        claim["storageClassName"] = spec.storage_class_name
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": syncer(run),
            "namespace": namespace,
            "labels": labels(run),
            "ownerReferences": owners,
        },
        "spec": {
            "replicas": replicas,
            "serviceName": syncer(run),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {LABEL_RUN: run, LABEL_COMPONENT: SYNCER}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "template": {
                "metadata": pod_metadata(settings, labels(run), {ANNOTATION_CONTRACT: contract}),
                "spec": pod,
            },
            "volumeClaimTemplates": [{"metadata": {"name": "journal"}, "spec": claim}],
        },
    }
