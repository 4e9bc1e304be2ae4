"""A TrainingRun in a file, read by the models that write the CRD, as the planner takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from atoll_cli.errors import UsageError
from atoll_operator.api.trainingrun import MAX_UNITS, Pool, TrainingRunSpec
from atoll_operator.plan.pools import sizes
from atoll_operator.plan.tpu import check_slices, chips_of, generation_of, slice_of
from atoll_runtime import model
from atoll_runtime.simulate.planner import run as planner
from atoll_runtime.sync.fragments import LayoutError

KIND = "TrainingRun"


class FieldError(ValueError):
    """A field whose value cannot be; the message begins with its path."""


def read_run(path: Path) -> planner.Run:
    """The one TrainingRun of the file.

    Raises:
        UsageError: no such file, no YAML, no TrainingRun or several, or a field that is wrong, by its path.
    """
    manifest = _manifest(path)
    try:
        spec = TrainingRunSpec.model_validate(manifest.get("spec"))
        return _converted(_name(manifest, path), spec)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first(error)}") from error
    except FieldError as error:
        raise UsageError(f"{path}: {error}") from error


def _manifest(path: Path) -> dict[str, Any]:
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    runs = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    if len(runs) != 1:
        raise UsageError(f"{path}: one document of kind {KIND} is wanted; there are {len(runs)}")
    return runs[0]


def _name(manifest: dict[str, Any], path: Path) -> str:
    metadata = manifest.get("metadata")
    return str(metadata["name"]) if isinstance(metadata, dict) and "name" in metadata else path.stem


def _first(error: ValidationError) -> str:
    """The first of what is wrong, as `spec.pools[0].units: …`."""
    wrong = error.errors(include_url=False)
    path = "spec" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in wrong[0]["loc"])
    value = wrong[0]["input"]
    shown = f"{value!r}: " if isinstance(value, (str, int, float)) else ""
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"{path}: {shown}{wrong[0]['msg']}{more}"


def _converted(name: str, spec: TrainingRunSpec) -> planner.Run:
    """Raises `FieldError` for what the API server's rules refuse and a plan cannot be made of."""
    units, outer, target = sizes(spec), spec.outer, spec.target
    total = sum(units.values())
    if outer.fragments > outer.interval:
        raise FieldError(f"spec.outer.fragments: {outer.fragments}: at most interval ({outer.interval})")
    if outer.overlap > outer.interval:
        raise FieldError(f"spec.outer.overlap: {outer.overlap}: at most interval ({outer.interval})")
    if spec.quorum.min > total:
        raise FieldError(f"spec.quorum.min: {spec.quorum.min}: at most the units of all pools ({total})")
    if target.global_steps is None and target.tokens is None:
        raise FieldError("spec.target: globalSteps or tokens is wanted")
    names = [pool.name for pool in spec.pools]
    if len(set(names)) < len(names):
        raise FieldError(f"spec.pools: names must differ: {', '.join(names)}")
    try:
        tensors = tuple(model.describe(spec.model))
    except model.ModelError as error:
        raise FieldError(f"spec.{error}") from error
    run = planner.Run(
        name=name,
        tensors=tensors,
        sequence_length=spec.data.sequence_length,
        pools=tuple(
            _pool(index, pool, units[pool.name], spec.inner.batch)
            for index, pool in enumerate(spec.pools)
            if units[pool.name]
        ),
        fragments=outer.fragments,
        interval=outer.interval,
        overlap=outer.overlap,
        # Pushed in int4, fetched as bf16: a link is as wide as the wider of its two directions.
        codec="bf16" if outer.codec == "int4" else outer.codec,
        quorum=spec.quorum.min,
        grace_fraction=spec.quorum.grace.fraction,
        grace_steps=spec.quorum.grace.max_steps,
        checkpoint_steps=spec.checkpoint.interval_steps,
        seed=spec.recovery.seed,
        target_steps=target.global_steps,
        target_tokens=target.tokens,
    )
    try:
        run.layout  # noqa: B018
    except LayoutError as error:
        raise FieldError(f"spec.{error}") from error
    return run


def _pool(index: int, pool: Pool, units: int, batch: int) -> planner.Pool:
    slices = pool.slices_per_unit
    try:
        shape = slice_of(pool.accelerator, pool.topology, pool.machine_type)
        check_slices(shape, slices, "slicesPerUnit")
    except ValueError as error:
        raise FieldError(f"spec.pools[{index}].{error}") from error
    generation = generation_of(pool.accelerator)
    return planner.Pool(
        name=pool.name,
        generation="v5e" if generation.prefix.startswith("v5lite") else generation.prefix,
        units=units,
        chips=slices * shape.hosts * shape.chips_per_host,
        batch=pool.batch or batch,
        sizes=tuple(
            sorted({count * chips_of(each) for each in generation.topologies() for count in (1, slices)})
        ),
        most_units=MAX_UNITS,
    )
