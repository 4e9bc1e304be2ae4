"""The objects of a local cluster besides its nodes: CoreDNS, storage, and two bindings."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

import yaml

from atoll_local.machine import DNS_ADDRESS

COREDNS_IMAGE = "atoll.dev/coredns:1"
STORAGE_CLASS = "standard"
VOLUMES = 8
"""Static volumes: there is no provisioner. A used volume is not bound again."""
MANIFEST = Path(__file__).with_name("manifests") / "addons.yaml"


def objects(node: str, volumes: Path) -> list[dict[str, Any]]:
    """Every object, in an order in which they can be applied. CoreDNS and the volumes are on `node`."""
    names = {"node": node, "coredns": COREDNS_IMAGE, "dns": DNS_ADDRESS, "storage": STORAGE_CLASS}
    text = Template(MANIFEST.read_text()).substitute(names)
    return [*yaml.safe_load_all(text), *(_volume(node, volumes, number) for number in range(VOLUMES))]


def _volume(node: str, volumes: Path, number: int) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{number}"},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(volumes / str(number))},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
