"""What every pod of a run reads, and the metadata of the objects that the run owns."""

from __future__ import annotations

from atoll_operator.api.group import LABEL_MANAGER, LABEL_RUN, MANAGER, RUN_KIND, Object, owner
from atoll_operator.plan.pods import names
from atoll_operator.plan.run.observed import RunObserved
from atoll_runtime.contract import RunContract, SyncerAddress, brief

COPIED = ("model", "data", "inner", "outer", "quorum", "target", "checkpoint")
"""Sections of the spec that pods read as they are."""


def metadata(run: RunObserved, name: str) -> Object:
    """Of an object that the run owns."""
    labels, owners = {LABEL_MANAGER: MANAGER, LABEL_RUN: run.name}, [owner(RUN_KIND, run.name, run.uid)]
    return {"name": name, "namespace": run.namespace, "labels": labels, "ownerReferences": owners}


def contract(run: RunObserved) -> RunContract:
    """The contract that every pod of the run reads."""
    spec = run.spec
    hosts = [names.shard_host(run.name, run.namespace, shard) for shard in range(spec.syncer.shards)]
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


def config_map(run: RunObserved) -> Object:
    named, data = metadata(run, names.config_map(run.name)), {"run.json": brief(contract(run))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data}


def batches(run: RunObserved) -> dict[str, tuple[int, ...]]:
    """See `SyncerContract`: what the spec wants, and what units have that are not changed yet."""
    wanted = {pool.name: pool.batch or run.spec.inner.batch for pool in run.spec.pools}
    found = {f"{run.name}-{pool}": {batch} for pool, batch in wanted.items()}
    for name, unit in run.own_units.items():
        if unit.spec is not None:
            pool = names.unit_name(run.name, unit.spec.pool, 0).removesuffix("-0")
            found.setdefault(pool if unit.owned else name, set()).add(unit.spec.batch)
    return {name: tuple(sorted(each)) for name, each in sorted(found.items())}
