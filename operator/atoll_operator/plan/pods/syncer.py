"""The syncer's objects: a headless Service, and a StatefulSet with one pod and one journal volume per shard."""

from __future__ import annotations

from atoll_operator.api.group import SYNCER, Object
from atoll_operator.api.sections import SyncerSpec
from atoll_operator.plan.pods.template import PodSettings, container, workload
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_SHARD,
    HEALTH_PORT,
    JOURNAL_DIR,
    STATUS_PORT,
    SYNCER_PORT,
)

PORTS = {"sync": SYNCER_PORT, "status": STATUS_PORT, "health": HEALTH_PORT}
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label of a StatefulSet's pods (Kubernetes 1.28)."""


def objects(
    settings: PodSettings,
    namespace: str,
    owners: list[Object],
    spec: SyncerSpec,
    replicas: int,
    layout: int,
    contract: str = "",
) -> tuple[Object, Object]:
    """Service and StatefulSet. Scaling it to 0 keeps the journals (suspended, failed); deleting it deletes them
    (finished).

    Args:
        layout: number of changes of `spec.shards`. Each layout has its own folder on the volumes, because a journal of
            an older layout may have the same number of shards but an abandoned history. A shard removes older folders.
        contract: see `workload`.
    """
    environment = {
        ENV_JOURNAL_DIR: f"{JOURNAL_DIR}/layout-{layout}",
        "NUMBA_CACHE_DIR": f"{JOURNAL_DIR}/compiled",  # so that a restart does not compile the merge again
        # Return large freed arrays to the system: saves a third of the memory at a checkpoint (2026-11-22).
        "MALLOC_MMAP_THRESHOLD_": "262144",
        "MALLOC_TRIM_THRESHOLD_": "262144",
        "JAX_PLATFORMS": "cpu",  # JAX writes checkpoints here; the image's libtpu would look for chips
    }
    main = container(settings, "atoll_runtime.syncer", environment, spec.resources)
    field = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{POD_INDEX}']"}
    main["env"].append({"name": ENV_SHARD, "valueFrom": {"fieldRef": field}})
    main["volumeMounts"].append({"name": "journal", "mountPath": JOURNAL_DIR})
    claim: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": spec.storage}}}
    if spec.storage_class_name is not None:
        claim["storageClassName"] = spec.storage_class_name
    return workload(
        settings, SYNCER, namespace, owners, spec, main, PORTS, replicas, contract,
        persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Retain"},
        volumeClaimTemplates=[{"metadata": {"name": "journal"}, "spec": claim}],
    )  # fmt: skip
