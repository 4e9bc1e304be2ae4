"""Names of the API group, of labels, and of what the operator writes under its own name."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

GROUP = "atoll.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
RUN_KIND = "TrainingRun"
UNIT_KIND: Final = "LearnerUnit"

LABEL_MANAGER = "app.kubernetes.io/managed-by"
MANAGER = "atoll"
"""Manager of objects, in their label, and of their fields."""
LABEL_RUN = f"{GROUP}/run"
LABEL_UNIT = f"{GROUP}/unit"
LABEL_PLACEMENT = f"{GROUP}/placement"
LABEL_HOST = f"{GROUP}/host"
LABEL_SLICE = f"{GROUP}/slice"
"""Number of a host's slice within its unit."""
LABEL_HOLDS = f"{GROUP}/holds"
"""On pods that hold a node pool for their slice; its value names the slice in the whole cluster."""
LABEL_COMPONENT = f"{GROUP}/component"
ANNOTATION_INCARNATION = f"{GROUP}/incarnation"
"""On a learner's pod: the incarnation that its process has, or has to restart for."""
ANNOTATION_CONTRACT = f"{GROUP}/contract"
"""On every pod: a digest of its run's settings for pods when it was made."""
LEARNER = "learner"
SYNCER = "syncer"
EVALUATOR = "evaluator"
KUEUE = "kueue.x-k8s.io/"
LABEL_QUEUE = f"{KUEUE}queue-name"
LABEL_POD_GROUP = f"{KUEUE}pod-group-name"
"""Kueue's, on a learner's pod whose unit names a queue."""
KUEUE_MANAGED = f"{KUEUE}managed"
"""A label, and the name of Kueue's finalizer."""
NODE_POOL = "cloud.google.com/gke-nodepool"
"""Label of a node: its node pool. A pool of several hosts is one slice."""
SPOT = "cloud.google.com/gke-spot"
ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
MACHINE_TYPE = "node.kubernetes.io/instance-type"
TPU = "google.com/tpu"
"""Resource, and key of the taint of TPU nodes."""


def metadata(name: str, namespace: str, run: str, owner: Object) -> Object:
    """Metadata of an object that belongs to this run, with its controller reference."""
    labels = {LABEL_MANAGER: MANAGER, LABEL_RUN: run}
    return {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}


def owner(kind: str, name: str, uid: str) -> Object:
    """A controller reference to one of our own objects. A foreground deletion of that waits for what it owns."""
    reference = {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid}
    return {**reference, "controller": True, "blockOwnerDeletion": True}
