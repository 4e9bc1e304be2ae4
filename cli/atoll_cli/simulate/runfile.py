"""Reads a TrainingRun from a file with the models that define the CRD, and converts it for the planner."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from atoll_cli.errors import UsageError
from atoll_cli.simulate.admission import faults
from atoll_operator.api.group import RUN_KIND
from atoll_operator.api.sections import MAX_UNITS, Pool
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.limits import sizes
from atoll_operator.plan.pods.topology import MAX_HOSTS, Generation, chips_of, generation_of, slice_of
from atoll_runtime import model
from atoll_runtime.contract import InnerSpec, MeshSpec
from atoll_runtime.protocol.fragments import LayoutError
from atoll_runtime.simulate.planner import run as planner


class _Loader(yaml.SafeLoader):
    """Reads `1e-3` and `2e9` as numbers, as kubectl does. PyYAML wants a point and a sign."""


_EXPONENT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$", re.ASCII)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"-+.0123456789"])


def read_run(path: Path) -> tuple[TrainingRunSpec, planner.Run]:
    """Return the spec of the only TrainingRun of the file, and the run in the planner's form. Raises `UsageError`: the
    file cannot be used, the API server would refuse the run, or no plan can be made of it."""
    name, spec = checked_spec(path, read_manifest(path))
    return spec, _planned(path, name, spec)


def checked_spec(path: Path, manifest: Mapping[str, Any]) -> tuple[str, TrainingRunSpec]:
    """Return a TrainingRun's name and spec. Raises `UsageError` if the API server would refuse the run of this file."""
    if refused := faults(manifest):
        head = [f"the API server would refuse {len(refused)} things:"] if len(refused) > 1 else []
        raise UsageError(f"{path}: " + "\n  ".join([*head, *refused]))
    return manifest["metadata"]["name"], TrainingRunSpec.model_validate(manifest["spec"])


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the file's only TrainingRun, unchecked. Raises `UsageError`: no such file, not YAML, none or several."""
    try:
        documents = list(yaml.load_all(path.read_text(encoding="utf-8"), _Loader))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or 2026-13-45
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    runs = [each for each in documents if isinstance(each, dict) and each.get("kind") == RUN_KIND]
    if len(runs) != 1:
        raise UsageError(f"{path}: one document of kind {RUN_KIND} is wanted; there are {len(runs)}")
    try:
        found: dict[str, Any] = json.loads(json.dumps(runs[0], default=str), parse_float=_number)
    except (TypeError, ValueError, RecursionError) as error:  # ValueError: an alias of what contains it
        raise UsageError(f"{path}: not an object of Kubernetes: {error}") from error
    return found


def _number(text: str) -> float:
    """Return a number as kubectl sends it: a whole number has no fraction."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _planned(path: Path, name: str, spec: TrainingRunSpec) -> planner.Run:
    """Return the planner's run. Raises `UsageError` for a spec that the API server accepts but no plan can use."""
    units = sizes(spec)
    if not any(units.values()):
        raise UsageError(f"{path}: spec.units: 0: nothing trains; a plan needs the units that are to train")
    if sum(units.values()) < spec.quorum.min:
        raise UsageError(
            f"{path}: spec.quorum.min: {spec.quorum.min}: at most the {sum(units.values())} units of spec.units are "
            "wanted: nothing is merged"
        )
    try:
        tensors = tuple(model.describe(spec.model))
        model.check(spec.model, spec.data.sequence_length, spec.data.packing)
    except model.ModelError as error:
        raise UsageError(f"{path}: spec.{error}") from error
    run = planner.Run(
        name=name,
        tensors=tensors,
        sequence_length=spec.data.sequence_length,
        pools=tuple(_pool(pool, units[pool.name], spec.inner) for pool in spec.pools if units[pool.name]),
        outer=spec.outer,
        communication=spec.communication,
        quorum=spec.quorum,
        target=spec.target,
        checkpoint_steps=spec.checkpoint.interval_steps,
        audit=spec.recovery.audit,
        seed=spec.recovery.seed,
        shards=spec.syncer.shards,
        tape=spec.syncer.tape,
    )
    try:
        run.shard_layouts  # noqa: B018
    except LayoutError as error:
        raise UsageError(f"{path}: spec.{error}") from error
    return run


def _pool(pool: Pool, units: int, inner: InnerSpec) -> planner.Pool:
    slices = pool.slices_per_unit
    shape = slice_of(pool.accelerator, pool.topology, pool.machine_type)
    generation = generation_of(pool.accelerator)
    return planner.Pool(
        name=pool.name,
        generation="v5e" if generation.prefix.startswith("v5lite") else generation.prefix,
        units=units,
        chips=slices * shape.hosts * shape.chips_per_host,
        batch=pool.batch or inner.batch,
        link_gbps=pool.link,
        sizes=tuple(sorted({*_sizes(pool, generation, inner.mesh)})),
        most_units=MAX_UNITS,
    )


def _sizes(pool: Pool, generation: Generation, mesh: MeshSpec) -> Iterator[int]:
    """The chips of each unit that the API server would accept in this pool."""
    for topology in generation.topologies():
        hosts = {machine.hosts(topology) for machine in generation.machines_of(topology)}
        chips = chips_of(topology)
        devices = chips * generation.devices_per_chip
        if devices % mesh.tensor or (pool.capacity == "FlexStart" and 1 not in hosts):
            continue
        for slices in {1, pool.slices_per_unit}:
            if devices * slices % (mesh.tensor * mesh.expert) == 0 and (
                slices == 1 or 2 <= max(hosts) <= MAX_HOSTS // slices
            ):
                yield slices * chips
