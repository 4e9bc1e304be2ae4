"""Hypothesis strategies for valid and for damaged TrainingRuns and LearnerUnits. Values follow the schemas of the CRDs,
so a new field is drawn as soon as it exists. What a schema cannot express (which slices exist, sums, names) is written
here, independently of the rules under test."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from refusals import REMOVE, SCHEMAS, VALID, Path, patched, rows

from atoll_operator.api.sections import MAX_UNITS
from atoll_operator.plan.pods.names import EVALUATED_LIMIT, NAMES_LIMIT
from atoll_operator.plan.pods.topology import GENERATIONS, MAX_HOSTS, chips_of
from atoll_runtime.contract import OPTIMIZERS, Codec, ModelSpec
from atoll_runtime.model import describe, resolve
from atoll_runtime.protocol.fragments import Piece, TensorInfo, cut

Object = dict[str, Any]
LONG = 3600
"""Seconds. A time limit of at least this does not expire within a test."""
SMALL_HOSTS = 4
"""Most hosts of a unit if all its pods are created."""

NAMES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12)
KEYS = ["disk", "example.com/rack", "cloud.google.com/gke-nodepool", "a.b/c_d", "x" * 63]
LABEL_KEYS = st.sampled_from(KEYS)
LABELS = st.dictionaries(LABEL_KEYS, st.sampled_from(["", "ssd", "r-1", "A.b_c", "9" * 63]), max_size=3)
BUCKETS = st.sampled_from(["gs://bucket", "gs://my-bucket.example/run", "gs://b0_c/a/ü"])
SPLITS = st.sampled_from([1, 2, 4, 6, 8, 16, 64])
"""Numbers that often divide each other."""
PATHS = st.sampled_from(["/mnt", "/mnt/a b", "/mnt/data", "/dev/shm", "/etc/ssl/certs", "/é/.a..b"])
NAMED = st.sampled_from([{"name": name} for name in OPTIMIZERS])
OPTIMIZERS_USED = NAMED | st.sampled_from(VALID["optimizers"])


@st.composite
def _template(draw: st.DrawFn) -> Object:
    sources = draw(st.lists(st.sampled_from(VALID["volumes"]), max_size=3))
    paths = draw(st.lists(PATHS, max_size=len(sources), unique=True))
    parts: Mapping[str, st.SearchStrategy[Any]] = {
        "labels": LABELS,
        "annotations": st.dictionaries(LABEL_KEYS, st.text("a\n ü日{}", max_size=20), max_size=2),
        "env": st.lists(st.sampled_from(VALID["variables"]), unique_by=lambda each: each["name"]),
        "imagePullSecrets": st.just([{"name": "pull"}]),
        "priorityClassName": st.just("system-cluster-critical"),  # every cluster has it
        "volumes": st.just([{"name": f"v-{index}", **source} for index, source in enumerate(sources)]),
    }
    template = draw(st.fixed_dictionaries({}, optional=dict(parts)))
    if "volumes" in template:
        mounts = enumerate(paths)
        template["volumeMounts"] = [{"name": f"v-{index}", "mountPath": path} for index, path in mounts]
    return template


KNOWN: Mapping[str, st.SearchStrategy[Any]] = {
    "data.uri": BUCKETS,
    "checkpoint.uri": BUCKETS,
    "image": st.sampled_from(["learner", "registry.example/a/learner:1.2", "learner@sha256:" + "0" * 64]),
    "resources": st.sampled_from(VALID["resources"]),
    "nodeSelector": LABELS,
    "tolerations": st.lists(st.sampled_from(VALID["tolerations"]), max_size=3),
    "podTemplate": _template(),
    "inner.optimizer": OPTIMIZERS_USED,
    "inner.mesh": st.fixed_dictionaries({}, optional={"tensor": SPLITS, "expert": SPLITS}),
    "dimensions.kvHeads": SPLITS,
    "dimensions.experts": st.just(0) | SPLITS,
    "serviceAccountName": st.just("default"),
    "syncer.storage": st.sampled_from(["1Gi", "500M", 2_000_000_000, "1.5Ti", "1e9"]),
    "storageClassName": st.lists(NAMES, min_size=1, max_size=3).map(".".join),
    "run": st.just("host"),
    "pool": NAMES,
    "activeDeadlineSeconds": st.sampled_from([LONG, 31_536_000]),
    "ttlSecondsAfterFinished": st.sampled_from([0, LONG, 31_536_000]),
    "hangSeconds": st.sampled_from([0, LONG, 86_400]),
    "startupSeconds": st.sampled_from([LONG, 86_400]),
    "belowQuorumSeconds": st.sampled_from([LONG, 604_800]),
}
"""Strategies by the end of a path, for fields with a schema that allows too much, or with times that could end a
test."""


@st.composite
def _object(draw: st.DrawFn, parts: Mapping[str, st.SearchStrategy[Any]], needed: frozenset[str]) -> Object:
    """Draw the needed parts and a quarter of the others. Two numbers choose them, because every draw takes time."""
    chosen = draw(st.integers(0, 2 ** len(parts) - 1)) & draw(st.integers(0, 2 ** len(parts) - 1))
    some = [name for index, name in enumerate(parts) if name in needed or chosen >> index & 1]
    return {name: draw(parts[name]) for name in some}


def values(schema: Object, place: str = "") -> st.SearchStrategy[Any]:
    for end in (".".join(place.split(".")[-2:]), place.rpartition(".")[2]):
        if end in KNOWN:
            return KNOWN[end]
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema:
        parts = {name: values(part, f"{place}.{name}") for name, part in schema["properties"].items()}
        return _object(parts, frozenset(schema.get("required", ())))
    low, high = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31)
    match schema.get("type"):
        case "integer":
            return st.one_of(st.integers(low, high), st.sampled_from([low, min(low + 1, high), high]))
        case "number":
            above, below = schema.get("exclusiveMinimum", False), schema.get("exclusiveMaximum", False)
            return st.floats(low, high, exclude_min=above, exclude_max=below, allow_subnormal=False)
        case "boolean":
            return st.booleans()
        case "string" if "pattern" in schema:
            pattern = re.compile(schema["pattern"], re.ASCII)  # as Go reads it
            most = schema.get("maxLength", math.inf)
            return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= most)
        case "array":
            return st.lists(values(schema["items"], place), min_size=schema.get("minItems", 0), max_size=3)
    raise TypeError(f"{place}: no values are known for {schema}; add them to KNOWN")


MACHINES = [(each, machine) for each in GENERATIONS for machine in each.machines]
SHAPES = [(*each, name) for each in MACHINES for name in each[1].all_topologies()]
SMALL_SHAPES = [each for each in SHAPES if each[1].hosts(each[2]) <= SMALL_HOSTS]


@st.composite
def _slices(draw: st.DrawFn, small: bool, field: str) -> Object:
    """Accelerator, topology, number of slices, and a machine type if it is needed or by chance."""
    generation, machine, topology = draw(st.sampled_from(SMALL_SHAPES if small else SHAPES))
    found: Object = {"accelerator": generation.accelerator, "topology": topology}
    if topology in generation.ambiguous() or draw(st.booleans()):
        found["machineType"] = machine.name
    hosts = machine.hosts(topology)
    if hosts > 1 and draw(st.booleans()):
        found[field] = draw(st.integers(1, min(64, (SMALL_HOSTS if small else MAX_HOSTS) // hosts)))
    return found


def _spec_of(kind: str) -> Object:
    return dict(SCHEMAS[kind]["properties"]["spec"])


def _without(schema: Object, *names: str) -> st.SearchStrategy[Any]:
    properties = {name: part for name, part in schema["properties"].items() if name not in names}
    return values({**schema, "properties": properties})


SLICE = ("accelerator", "topology", "machineType")
_POOL = _spec_of("TrainingRun")["properties"]["pools"]["items"]
_FREE_POOL = _without(_POOL, *SLICE, "slicesPerUnit", "units", "name", "capacity", "reservationName")
_FREE_RUN = _without(_spec_of("TrainingRun"), "pools", "units", "queuePriorityClass")
_FREE_UNIT = _without(_spec_of("LearnerUnit"), *SLICE, "slices", "stream", "streams", "queuePriorityClass")


@st.composite
def _pools(draw: st.DrawFn, small: bool) -> list[Object]:
    pools = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=2 if small else 4, unique=True)):
        units = draw(st.integers(0, 2 if small else 256))
        pool = {**draw(_FREE_POOL), **draw(_slices(small, "slicesPerUnit")), "name": name, "units": units}
        capacity = draw(st.sampled_from([None, "OnDemand", "Spot", "Reservation", "FlexStart"]))
        if capacity == "Reservation":
            pool["reservationName"] = draw(NAMES)
        if capacity == "FlexStart":
            pool = {key: value for key, value in pool.items() if key not in ("machineType", "slicesPerUnit")}
            pool |= {"accelerator": "tpu-v6e-slice", "topology": draw(st.sampled_from(["1x1", "2x2"]))}
        pools.append({**pool, **({"capacity": capacity} if capacity else {})})
    if not any(pool["units"] for pool in pools):
        pools[0]["units"] = 1
    return pools


def _body(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "atoll.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@st.composite
def runs(draw: st.DrawFn, small: bool = False) -> Object:
    """A TrainingRun that the API must accept. `small`: few enough pods to create all of them."""
    spec = {**draw(_FREE_RUN), "pools": draw(_pools(small))}
    if small and "shards" in spec.get("syncer", {}):
        spec["syncer"]["shards"] = 1 + spec["syncer"]["shards"] % 4
    if draw(st.integers(0, 4)) == 0:
        spec["units"] = draw(st.integers(0, 4 if small else MAX_UNITS * len(spec["pools"])))
    _agree(spec)
    longest = NAMES_LIMIT - max(len(pool["name"]) for pool in spec["pools"])
    name = "r" * min(longest, EVALUATED_LIMIT if "evaluation" in spec else longest)
    return _body("TrainingRun", draw(NAMES | st.just(name)), spec)


def _agree(spec: Object) -> None:
    """Makes independently drawn fields consistent."""
    model = spec["model"]
    kinds = [name for name in ("preset", "dimensions", "task") if name in model] or ["preset"]
    model.setdefault(kinds[0], "1m")
    for name in kinds[1:]:
        del model[name]
    if size := model.get("dimensions"):
        size["heads"] = size["kvHeads"] * (1 + size["heads"] % 16)
        size["width"] = 2 * size["heads"] * (4 + size["width"] % 28)
        size["hidden"] -= size["hidden"] % 8
        experts = size.get("experts", 0)
        size["expertHidden"] = 8 + size.get("expertHidden", 0) // 16 * 8 if experts else 0
        size["expertsPerToken"] = 1 + size.get("expertsPerToken", 0) % max(min(experts, 64), 1)
    read = ModelSpec.model_validate(model)
    pieces = math.inf if read.task else admitted_pieces(describe(read))
    outer = spec.get("outer", {})
    interval = outer.get("interval", 24)
    for name, default, most in (("fragments", 24, min(interval, pieces)), ("overlap", 2, interval)):
        if outer.get(name, default) > most:
            spec["outer"] = outer = {**outer, name: 1 + outer.get(name, default) % most}
    widths, communication = get_args(Codec), spec.get("communication", {})
    widest = widths.index(outer.get("codec", "bf16"))
    if widths.index(communication.get("codec", "int4")) < widest:
        communication["codec"] = widths[widest]
    if "shards" in spec.get("syncer", {}):
        spec["syncer"]["shards"] = min(spec["syncer"]["shards"], pieces)
    if mesh := spec.get("inner", {}).get("mesh"):
        sizes = [] if read.task else [resolve(read)]
        tensors = [math.gcd(size.heads, size.kv_heads, size.hidden, size.expert_hidden) for size in sizes]
        cores = {generation.accelerator: generation.devices_per_chip for generation in GENERATIONS}
        devices = [chips_of(pool["topology"]) * cores[pool["accelerator"]] for pool in spec["pools"]]
        tensor = mesh["tensor"] = math.gcd(mesh.get("tensor", 1), *tensors, *devices)
        wholes = [size.experts or 1 for size in sizes] + [one // tensor for one in devices]
        mesh["expert"] = math.gcd(mesh.get("expert", 1), *wholes)
    if not spec["target"]:
        spec["target"]["globalSteps"] = 100
    if "/mnt/data" in [mount["mountPath"] for mount in spec.get("podTemplate", {}).get("volumeMounts", ())]:
        spec["data"]["uri"] = "file:///mnt/data/tokens"
    if quorum := spec.get("quorum"):
        quorum["min"] = 1 + quorum.get("min", 1) % sum(pool["units"] for pool in spec["pools"])


@st.composite
def units(draw: st.DrawFn) -> Object:
    """A LearnerUnit of the run `host` as a user may create it, with a small slice."""
    streams = draw(st.integers(1, 16_384))
    spec = {**draw(_FREE_UNIT), **draw(_slices(True, "slices")), "streams": streams}
    return _body("LearnerUnit", draw(NAMES), {**spec, "stream": draw(st.integers(0, min(streams - 1, 8191)))})


WRONG = (
    None, True, [], {}, ["x"], [None], {"x": "y"}, {"x": None}, 0, -1, 1, 2, 2**31, 2**53 + 1, 2**63 - 1, 2**64, 0.5,
    3.0, -0.0, 1e308, "", " ", "a b", "Ünïcode", "\U0001f600", "a\u00a0b", "a\nb", "\x00", "-", "x" * 64, "x" * 5000, "gs://",
    "file:///tmp/x", "2x4", "0x0", "1e3", "-1Gi", "1GiB", "10m", "tpu-v5p-slice", "NaN", "a/b/c",
)  # fmt: skip


def _fields(schema: Object, path: Path = ()) -> Iterator[tuple[Path, Object]]:
    """Every path of a schema. An item of a list has the key `0`, a value of a map has the key `example.com/x`."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _fields(part, (*path, name))
    for inner, key in (("items", "0"), ("additionalProperties", "example.com/x")):
        if inner in schema:
            yield from _fields(schema[inner], (*path, key))


FIELDS = {kind: tuple(_fields(_spec_of(kind), ("spec",))) for kind in SCHEMAS}
CONTRADICTIONS = {
    kind: [row.patch for row in rows("refused") if row.body["kind"] == kind] for kind in SCHEMAS
}


def _wrong_size(schema: Object) -> Any:
    if "maxItems" in schema:
        return [{}] * (schema["maxItems"] + 1)
    if "maxProperties" in schema:
        return {f"k{n}": "1" for n in range(schema["maxProperties"] + 1)}
    if "maxLength" in schema:
        return "x" * (schema["maxLength"] + 1)
    return schema.get("maximum", 2**63 - 2) + 1


@st.composite
def broken(draw: st.DrawFn, bodies: st.SearchStrategy[Object]) -> Object:
    """A body with a contradiction from the table of refusals, or with one or two changes, which may be harmless."""
    body, kind = draw(bodies), draw(st.integers(0, 3))
    with contextlib.suppress(AttributeError, TypeError, LookupError, ValueError):  # the path may be gone
        if kind == 0:
            return patched(body, draw(st.sampled_from(CONTRADICTIONS[body["kind"]])))
        for _ in range(draw(st.integers(1, 2))):
            path, schema = draw(st.sampled_from(FIELDS[body["kind"]]))
            wrong = draw(st.sampled_from(WRONG)) if kind == 2 else _wrong_size(schema)
            value = REMOVE if kind == 1 else wrong
            body = patched(body, {path: value})
    return body


# The bodies that the suites use. SEED and SPECS in the environment draw other ones, and more of them.

SEED = int(os.environ.get("SEED") or 20261122)
COUNT = int(os.environ.get("SPECS") or 2000)
PARTS = {
    "runs": (runs(small=True), COUNT // 8, SEED),
    "units": (units(), COUNT // 8, SEED),
    "broken runs": (broken(runs(small=True)), COUNT // 4, SEED),
    "other broken runs": (broken(runs(small=True)), COUNT // 4, SEED + 1),
    "broken units": (broken(units()), COUNT // 4, SEED),
}
"""Strategy, number of bodies, and seed of each part."""


def drawn(part: str, share: int = 1) -> list[dict[str, Any]]:
    """Draw the bodies of a part, or only one in `share` as many."""
    strategy, count, own_seed = PARTS[part]
    bodies: list[dict[str, Any]] = []
    checks = list(HealthCheck)

    @seed(own_seed)
    @settings(
        max_examples=count // share, phases=[Phase.generate], deadline=None, database=None, suppress_health_check=checks
    )  # fmt: skip
    @given(strategy)
    def collect(body: dict[str, Any]) -> None:
        bodies.append(body)

    collect()
    return bodies


def admitted_pieces(tensors: Sequence[TensorInfo]) -> int:
    """Pieces of a model as admission counts them: all bands of a layer or an embedding count as one."""
    return len({(piece.tensor, _layer(piece)) for piece in cut(tensors)})


def _layer(piece: Piece) -> int | None:
    return None if piece.index is None or piece.axis is not None else piece.index // piece.bands
