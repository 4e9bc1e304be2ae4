"""Manifests of units' saves, as a learner's host writes them."""

from __future__ import annotations

from typing import Any

from atoll_runtime.checkpoint.manifest import HostManifest
from atoll_runtime.checkpoint.units import UnitStore
from atoll_runtime.protocol.fragments import Layout


def host_manifest(store: UnitStore, layout: Layout, cut: int, **more: Any) -> HostManifest:
    """Returns what the only host of unit `a` says of its save, unless `more` says otherwise."""
    single = {"unit": "a", "incarnation": 1, "host": 0, "hosts": 1, "inner_step": cut, "count": cut}
    facts = {**single, "fingerprint": layout.fingerprint, "shards": layout.shards, **more}
    return HostManifest(run_uid=store.run_uid, optimizer=store.optimizer, cut=cut, time=0.0, **facts)
