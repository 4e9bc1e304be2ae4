"""TrainingRuns and LearnerUnits as hypothesis makes them: valid ones over the whole space, and broken ones.

What is drawn follows the schemas of the definitions, so that a new field is drawn as soon as it exists. What a schema
cannot say (shapes of slices, sums, names) is told here, independently of the rules that judge it.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from atoll_operator.api.pool import MAX_UNITS
from atoll_operator.crd.generate import RESOURCES, definition
from atoll_operator.plan.pods.names import EVALUATED_LIMIT, NAMES_LIMIT
from atoll_operator.plan.pods.topology import GENERATIONS, MAX_HOSTS, chips_of
from atoll_runtime.contract import OPTIMIZERS, ModelSpec
from atoll_runtime.model import describe, resolve
from atoll_runtime.sync.fragments import cut

Object = dict[str, Any]
Path = tuple[str | int, ...]
SCHEMAS: Mapping[str, Object] = {
    resource.model.__name__: definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for resource in RESOURCES
}
LONG = 3600
"""Seconds: no time limit that is at least as long ends within a test."""
SMALL_HOSTS = 4
"""Pods of a unit, where all that is drawn has to be made."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A body with something wrong in it, which may turn out to be nothing."""

    body: Object
    field: str
    """Path of what was touched, as the API server writes it."""
    what: str
    """The kind of damage, in words."""


def written(path: Path) -> str:
    """`spec.pools[0].name`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


# Valid values.

NAMES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12)
SUBDOMAINS = st.lists(NAMES, min_size=1, max_size=3).map(".".join)
LABEL_KEYS = st.sampled_from(
    ["disk", "example.com/rack", "cloud.google.com/gke-nodepool", "a.b/c_d", "x" * 63]
)
LABEL_VALUES = st.sampled_from(["", "ssd", "r-1", "A.b_c", "9" * 63])
AMOUNTS: Mapping[str, tuple[str | int, ...]] = {
    "cpu": ("100m", "2", 1, "0.5", 64),
    "memory": ("256Mi", "1G", 1_073_741_824, "128974848", "1e9"),
    "ephemeral-storage": ("1Gi", 1_000_000, "5M"),
}
ALIKE = (("example.com/gadget", 2), ("example.com/gadget", "1k"), ("hugepages-2Mi", "4Mi"))
"""Whole ones, and as many requested as are the limit."""
STORAGE = st.sampled_from(["1Gi", "500M", 2_000_000_000, "1.5Ti", "1e9"])
IMAGES = st.sampled_from(["learner", "registry.example/a/learner:1.2", "learner@sha256:" + "0" * 64])


@st.composite
def _resources(draw: st.DrawFn) -> Object:
    """Limits are at least the requests, for both are of one amount."""
    part: Object = {}
    for name in draw(st.lists(st.sampled_from(sorted(AMOUNTS)), max_size=3, unique=True)):
        amount = draw(st.sampled_from(AMOUNTS[name]))
        for kind in draw(st.sampled_from([("requests",), ("limits",), ("requests", "limits")])):
            part.setdefault(kind, {})[name] = amount
    if draw(st.integers(0, 3)) == 0:
        name, amount = draw(st.sampled_from(ALIKE))
        for kind in draw(st.sampled_from([("limits",), ("requests", "limits")])):
            part.setdefault(kind, {})[name] = amount
        if not any(amounts.keys() & {"cpu", "memory"} for amounts in part.values()):
            part["limits"]["cpu"] = 64
    return part


@st.composite
def _toleration(draw: st.DrawFn) -> Object:
    exists = draw(st.booleans())
    one: Object = {"operator": "Exists"} if exists else {"key": draw(LABEL_KEYS)}
    if not exists:
        one |= draw(st.fixed_dictionaries({}, optional={"value": LABEL_VALUES, "operator": st.just("Equal")}))
    elif draw(st.booleans()):
        one["key"] = draw(LABEL_KEYS)
    effect = draw(st.sampled_from(["", "NoSchedule", "PreferNoSchedule", "NoExecute"]))
    if effect:
        one["effect"] = effect
    if effect == "NoExecute" and draw(st.booleans()):
        one["tolerationSeconds"] = draw(st.integers(0, 1000))
    return one


SEVERAL_TOLERATIONS = st.lists(_toleration(), max_size=3)
SELECTORS = st.dictionaries(LABEL_KEYS, LABEL_VALUES, max_size=3)
FULL_SELECTORS = SELECTORS | st.builds(lambda: {f"key-{number}": "v" for number in range(16)})
URIS = st.builds(
    "gs://{}{}".format,
    st.sampled_from(["bucket", "my-bucket.example", "b0_c"]),
    st.sampled_from(["", "/", "/run", "/a/ü"]),
)


_FILES = st.fixed_dictionaries(
    {},
    optional={
        "items": st.builds(lambda: [{"key": "a.b_c", "path": "sub/.a", "mode": 0o400}]),
        "optional": st.booleans(),
        "defaultMode": st.sampled_from([0, 0o440, 0o777]),
    },
)
_CSI = st.fixed_dictionaries(
    {"driver": st.sampled_from(["gcsfuse.csi.storage.gke.io", "d"])},
    optional={
        "readOnly": st.booleans(),
        "fsType": st.just("ext4"),
        "volumeAttributes": st.dictionaries(NAMES, st.text("a,=ü ", max_size=9), max_size=2),
        "nodePublishSecretRef": st.builds(lambda: {"name": "mine"}),
    },
)
_SOURCES = st.one_of(
    st.fixed_dictionaries({"claimName": SUBDOMAINS}, optional={"readOnly": st.booleans()}).map(
        lambda source: {"persistentVolumeClaim": source}
    ),
    _CSI.map(lambda source: {"csi": source}),
    _FILES.map(lambda source: {"configMap": {"name": "mine", **source}}),
    _FILES.map(lambda source: {"secret": {"secretName": "mine", **source}}),
    st.fixed_dictionaries({}, optional={"medium": st.just("Memory"), "sizeLimit": STORAGE}).map(
        lambda source: {"emptyDir": source}
    ),
)
_MOUNT_PATHS = st.sampled_from(["/mnt", "/mnt/a b", "/mnt/data", "/dev/shm", "/etc/ssl/certs", "/é/.a..b"])
_MOUNTED = st.fixed_dictionaries(
    {}, optional={"readOnly": st.booleans(), "subPath": st.sampled_from(["a", "a b/.c:d", "x/"])}
)


@st.composite
def _template(draw: st.DrawFn) -> Object:
    """Of pods; the one priority class is of every cluster."""
    variables = draw(
        st.lists(st.sampled_from(["XLA_FLAGS", "LIBTPU_INIT_ARGS", "TOKEN", "_a1"]), max_size=3, unique=True)
    )
    reference = {"name": "mine", "key": "a.b_c"}
    sources = st.sampled_from(
        [
            {"value": ""},
            {"value": "--a=1 ü"},
            {"valueFrom": {"secretKeyRef": reference}},
            {"valueFrom": {"configMapKeyRef": reference}},
        ]
    )
    volumes = draw(st.lists(st.tuples(NAMES, _SOURCES), max_size=3, unique_by=lambda volume: volume[0]))
    names = [f"v-{name}" for name, _ in volumes]  # the operator's own have no hyphen
    paths = draw(st.lists(_MOUNT_PATHS, max_size=3 if names else 0, unique=True))
    parts: Mapping[str, st.SearchStrategy[Any]] = {
        "labels": SELECTORS,
        "annotations": st.dictionaries(LABEL_KEYS, st.text("a\n ü日{}", max_size=20), max_size=2),
        "env": st.just([{"name": name, **draw(sources)} for name in variables]),
        "imagePullSecrets": st.just([{"name": "pull"}]),
        "priorityClassName": st.just("system-cluster-critical"),
    }
    template = draw(st.fixed_dictionaries({}, optional=dict(parts)))
    if names:
        template["volumes"] = [
            {"name": name, **source} for name, (_, source) in zip(names, volumes, strict=True)
        ]
        template["volumeMounts"] = [
            {"name": draw(st.sampled_from(names)), "mountPath": path, **draw(_MOUNTED)} for path in paths
        ]
    return template


_SPLITS = st.sampled_from([1, 2, 4, 6, 8, 16, 64])
"""Numbers that often divide each other."""
_OPTIMISERS = st.sampled_from(OPTIMIZERS).map(lambda name: {"name": name}) | st.sampled_from(
    [
        {"name": "lion", "arguments": {"b1": 0.95, "weight_decay": 1}},
        {"name": "sgd", "arguments": {"momentum": 0.5, "nesterov": 1}},
        {"name": "adafactor", "arguments": {"min_dim_size_to_factor": 8, "factored": 0}},
    ]
)

KNOWN: Mapping[str, st.SearchStrategy[Any]] = {
    "spec.data.uri": URIS,
    "spec.checkpoint.uri": URIS,
    "spec.image": IMAGES,
    "spec.inner.optimizer": _OPTIMISERS,
    "spec.inner.mesh": st.fixed_dictionaries({}, optional={"tensor": _SPLITS, "expert": _SPLITS}),
    "spec.model.dimensions.kvHeads": _SPLITS,
    "spec.model.dimensions.experts": st.just(0) | _SPLITS,
    "spec.serviceAccountName": st.just("default"),
    "spec.syncer.resources": _resources(),
    "spec.syncer.nodeSelector": SELECTORS,
    "spec.syncer.tolerations": SEVERAL_TOLERATIONS,
    "spec.syncer.storage": STORAGE,
    "spec.syncer.storageClassName": SUBDOMAINS,
    "spec.evaluation.resources": _resources(),
    "spec.evaluation.nodeSelector": SELECTORS,
    "spec.evaluation.tolerations": SEVERAL_TOLERATIONS,
    "spec.evaluation.image": IMAGES,
    "spec.pools[].name": NAMES,
    "spec.pools[].resources": _resources(),
    "spec.pools[].nodeSelector": FULL_SELECTORS,
    "spec.pools[].tolerations": SEVERAL_TOLERATIONS,
    "spec.resources": _resources(),
    "spec.nodeSelector": SELECTORS,
    "spec.tolerations": SEVERAL_TOLERATIONS,
    "spec.podTemplate": _template(),
    "spec.run": st.just("nobody"),
    "spec.pool": NAMES,
    "spec.activeDeadlineSeconds": st.sampled_from([1, LONG, 31_536_000]),
    "spec.ttlSecondsAfterFinished": st.sampled_from([0, LONG, 31_536_000]),
    "spec.recovery.hangSeconds": st.sampled_from([0, LONG, 86_400]),
    "spec.recovery.startupSeconds": st.sampled_from([LONG, 86_400]),
    "spec.recovery.belowQuorumSeconds": st.sampled_from([LONG, 604_800]),
}
"""Where the schema alone does not say what works, or a short time would end what a test looks at."""


@st.composite
def _object(draw: st.DrawFn, parts: Mapping[str, st.SearchStrategy[Any]], needed: frozenset[str]) -> Object:
    """What is needed, and a quarter of the rest: two numbers say which, because every draw takes time."""
    chosen = draw(st.integers(0, 2 ** len(parts) - 1)) & draw(st.integers(0, 2 ** len(parts) - 1))
    return {
        name: draw(part)
        for index, (name, part) in enumerate(parts.items())
        if name in needed or chosen >> index & 1
    }


def values(schema: Object, place: str) -> st.SearchStrategy[Any]:
    """Values that this part of a schema takes."""
    if place in KNOWN:
        return KNOWN[place]
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema:
        return _object(
            {name: values(part, f"{place}.{name}") for name, part in schema["properties"].items()},
            frozenset(schema.get("required", ())),
        )
    kind = schema.get("type")
    if kind == "integer":
        low, high = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31)
        return st.one_of(st.integers(low, high), st.sampled_from([low, min(low + 1, high), high]))
    if kind == "number":
        return st.floats(
            schema.get("minimum", -1e9),
            schema.get("maximum", 1e9),
            exclude_min=schema.get("exclusiveMinimum", False),
            exclude_max=schema.get("exclusiveMaximum", False),
            allow_subnormal=False,
        )
    if kind == "boolean":
        return st.booleans()
    if kind == "string" and "pattern" in schema:
        pattern = re.compile(schema["pattern"], re.ASCII)  # as Go reads it
        return st.from_regex(pattern, fullmatch=True).filter(
            lambda text: len(text) <= schema.get("maxLength", math.inf)
        )
    if kind == "string":
        return st.text(
            "abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=schema.get("maxLength", 20)
        )
    if kind == "array":
        return st.lists(values(schema["items"], f"{place}[]"), min_size=schema.get("minItems", 0), max_size=3)
    if isinstance(part := schema.get("additionalProperties"), dict):
        most = min(schema.get("maxProperties", 3), 3)
        return st.dictionaries(NAMES, values(part, f"{place}.*"), max_size=most)
    raise TypeError(f"{place}: no values are known for {schema}; add them to KNOWN")


@dataclass(frozen=True, slots=True)
class Shape:
    """A slice that exists."""

    fields: Object
    """Of a pool."""
    hosts: int
    ambiguous: bool
    """The machine type has to be named."""
    flexible: bool
    """There is flex-start for single hosts of its kind."""


def _shapes() -> Iterator[Shape]:
    for generation in GENERATIONS:
        for machine in generation.machines:
            ambiguous = generation.ambiguous()
            for topology in machine.all_topologies():
                yield Shape(
                    {
                        "accelerator": generation.accelerator,
                        "topology": topology,
                        "machineType": machine.name,
                    },
                    chips_of(topology) // machine.chips,
                    topology in ambiguous,
                    generation.flex_start,
                )


SHAPES = tuple(_shapes())
SMALL_SHAPES = tuple(shape for shape in SHAPES if shape.hosts <= SMALL_HOSTS)


@st.composite
def _named(draw: st.DrawFn, shape: Shape) -> Object:
    """Its fields; the machine type where it is needed, and now and then where it is not."""
    named = shape.ambiguous or draw(st.booleans())
    return {key: value for key, value in shape.fields.items() if named or key != "machineType"}


_POOL = SCHEMAS["TrainingRun"]["properties"]["spec"]["properties"]["pools"]["items"]
_UNIT = SCHEMAS["LearnerUnit"]["properties"]["spec"]
_FREE_RUN = values(
    {
        **SCHEMAS["TrainingRun"]["properties"]["spec"],
        "properties": {
            name: part
            for name, part in SCHEMAS["TrainingRun"]["properties"]["spec"]["properties"].items()
            if name not in ("pools", "units")
        },
        "required": ["model", "data", "target", "checkpoint"],
    },
    "spec",
)
_DIMENSIONS = values(
    SCHEMAS["TrainingRun"]["properties"]["spec"]["properties"]["model"]["properties"]["dimensions"],
    "spec.model.dimensions",
)
CAPACITIES = tuple(_POOL["properties"]["capacity"]["enum"])
_DRAWN_APART = (
    "slicesPerUnit",
    "accelerator",
    "topology",
    "machineType",
    "units",
    "name",
    "capacity",
    "reservationName",
)


def _without(schema: Object, names: tuple[str, ...]) -> Object:
    return {
        **schema,
        "properties": {name: part for name, part in schema["properties"].items() if name not in names},
        "required": [name for name in schema.get("required", ()) if name not in names],
    }


_FREE_POOL = values(_without(_POOL, _DRAWN_APART), "spec.pools[]")
_FREE_UNIT = values(
    _without(_UNIT, ("accelerator", "topology", "machineType", "slices", "stream", "streams")), "spec"
)
STREAMS = st.integers(1, _UNIT["properties"]["streams"]["maximum"])


@st.composite
def _pools(draw: st.DrawFn, small: bool) -> list[Object]:
    most = 2 if small else 256
    pools = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=2 if small else 4, unique=True)):
        shape = draw(st.sampled_from(SMALL_SHAPES if small else SHAPES))
        pool = {**draw(_FREE_POOL), **draw(_named(shape)), "name": name, "units": draw(st.integers(0, most))}
        slices = min(SMALL_HOSTS if small else 64, MAX_HOSTS) // shape.hosts
        if shape.hosts > 1 and slices > 1 and draw(st.booleans()):
            pool["slicesPerUnit"] = draw(st.integers(1, slices))
        if capacity := draw(st.sampled_from(["", *CAPACITIES])):
            flexible = shape.flexible and shape.hosts == pool.get("slicesPerUnit", 1) == 1
            pool["capacity"] = capacity if flexible or capacity != "FlexStart" else "Spot"
        if capacity == "Reservation":
            pool["reservationName"] = draw(NAMES)
        pools.append(pool)
    if not any(pool["units"] for pool in pools):
        pools[0]["units"] = 1
    return pools


@st.composite
def runs(draw: st.DrawFn, small: bool = False) -> Object:
    """A TrainingRun that the API has to take. `small`: so that all its pods can be made."""
    pools = draw(_pools(small))
    spec = {**draw(_FREE_RUN), "pools": pools}
    if draw(st.booleans()):
        spec["model"] = {"dimensions": draw(_DIMENSIONS)}
    if draw(st.booleans()):
        spec["inner"] = {**spec.get("inner", {}), "mesh": draw(KNOWN["spec.inner.mesh"])}
    units = sum(pool["units"] for pool in pools)
    if small and "shards" in spec.get("syncer", {}):
        spec["syncer"]["shards"] %= 4
        spec["syncer"]["shards"] += 1
    if draw(st.integers(0, 4)) == 0:
        spec["units"] = draw(st.integers(0, 4 if small else MAX_UNITS * len(pools)))
    _agree(spec, units)
    longest = NAMES_LIMIT - max(len(pool["name"]) for pool in pools)
    if "evaluation" in spec:
        longest = min(longest, EVALUATED_LIMIT)
    name = draw(st.one_of(NAMES, st.just("r" * longest)))
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": spec,
    }


def _agree(spec: Object, units: int) -> None:
    """Brings fields that were drawn apart from each other into agreement."""
    model = spec["model"]
    kinds = [name for name in ("preset", "dimensions", "task") if name in model]
    for name in kinds[:-1]:
        del model[name]
    if not kinds:
        model["preset"] = "1m"
    if dimensions := model.get("dimensions"):
        dimensions["heads"] = dimensions["kvHeads"] * (1 + dimensions["heads"] % 16)
        dimensions["width"] = 2 * dimensions["heads"] * (4 + dimensions["width"] % 28)
        dimensions["hidden"] -= dimensions["hidden"] % 8
        experts = dimensions.get("experts", 0)
        dimensions["expertHidden"] = 8 + dimensions.get("expertHidden", 0) // 16 * 8 if experts else 0
        if experts:
            dimensions["expertsPerToken"] = 1 + dimensions.get("expertsPerToken", 0) % min(experts, 64)
    _agree_on_fragments(spec)
    if not spec["target"].keys() & {"globalSteps", "tokens"}:
        spec["target"]["globalSteps"] = 100
    _agree_on_queue(spec)
    _agree_on_mesh(spec)
    mounts = [mount["mountPath"] for mount in spec.get("podTemplate", {}).get("volumeMounts", ())]
    if "/mnt/data" in mounts:
        spec["data"]["uri"] = "file:///mnt/data/tokens"
    if quorum := spec.get("quorum"):
        quorum["min"] = 1 + quorum.get("min", 1) % units


def _agree_on_fragments(spec: Object) -> None:
    """P ≤ H, τ ≤ H, and neither fragments nor shards are more than the model has pieces."""
    model = ModelSpec.model_validate(spec["model"])
    pieces = math.inf if model.task else sum(len(cut(tensor)) for tensor in describe(model))
    outer = spec.get("outer", {})
    interval = outer.get("interval", 24)
    for name, default, most in (("fragments", 24, min(interval, pieces)), ("overlap", 2, interval)):
        if outer.get(name, default) > most:
            spec["outer"] = outer = {**outer, name: 1 + outer.get(name, default) % most}
    if "shards" in spec.get("syncer", {}):
        spec["syncer"]["shards"] = min(spec["syncer"]["shards"], pieces)


def _agree_on_queue(spec: Object) -> None:
    """A priority in a queue needs the queue."""
    if "queueName" not in spec:
        spec.pop("queuePriorityClass", None)


def _agree_on_mesh(spec: Object) -> None:
    """A tensor is split within a slice, experts within a unit, of every pool alike, and both as the model can be."""
    model = ModelSpec.model_validate(spec["model"])
    tensors, experts = [], []
    if model.task is None:
        size = resolve(model)
        tensors, experts = [size.heads, size.kv_heads, size.hidden, size.expert_hidden], [size.experts or 1]
    mesh = spec.get("inner", {}).get("mesh", {})
    cores = {generation.accelerator: generation.devices_per_chip for generation in GENERATIONS}
    devices = [
        (chips_of(pool["topology"]) * cores[pool["accelerator"]], pool.get("slicesPerUnit", 1))
        for pool in spec["pools"]
    ]
    if mesh:
        tensor = mesh["tensor"] = math.gcd(mesh.get("tensor", 1), *tensors, *(size for size, _ in devices))
        each = (size * count // tensor for size, count in devices)
        mesh["expert"] = math.gcd(mesh.get("expert", 1), *experts, *each)


@st.composite
def units(draw: st.DrawFn) -> Object:
    """A LearnerUnit made by hand, of a small slice."""
    shape, streams = draw(st.sampled_from(SMALL_SHAPES)), draw(STREAMS)
    last = min(streams - 1, _UNIT["properties"]["stream"]["maximum"])
    spec = {
        **draw(_FREE_UNIT),
        **draw(_named(shape)),
        "streams": streams,
        "stream": draw(st.integers(0, last)),
    }
    if shape.hosts > 1 and draw(st.booleans()):
        spec["slices"] = draw(st.integers(1, SMALL_HOSTS // shape.hosts))
    _agree_on_queue(spec)
    return {
        "apiVersion": "atoll.dev/v1alpha1", "kind": "LearnerUnit", "metadata": {"name": draw(NAMES)}, "spec": spec,
    }  # fmt: skip


# Damage.

TEXTS = (
    "", " ", "a b", "Ünïcode", "日本", "\U0001f600", "a\u00a0b", "a\nb", "\x00", "-", "x" * 64, "x" * 5000, "gs://ab/\u00a0",
    "gs://", "file:///tmp/x", "2x4", "0x0", "1e3", "-1Gi", "1GiB", "10m", "tpu-v5p-slice", "NaN", "null", "{}", "a/b/c",
)  # fmt: skip
NUMBERS: tuple[int | float, ...] = (0, -1, 1, 2, 2**31, 2**53 + 1, 2**63 - 1, 2**64, 0.5, 3.0, -0.0, 1e308)
WRONG: tuple[Any, ...] = (None, True, "text", "5", 7, 1.5, [], ["x"], [None], {}, {"x": "y"}, {"x": None})


def _fields(schema: Object, path: Path = ()) -> Iterator[tuple[Path, Object]]:
    """Every place of a schema; an item of a list is `0`, a value of a map is `example.com/x`."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _fields(part, (*path, name))
    if "items" in schema:
        yield from _fields(schema["items"], (*path, 0))
    if isinstance(part := schema.get("additionalProperties"), dict):
        yield from _fields(part, (*path, "example.com/x"))


FIELDS: Mapping[str, tuple[tuple[Path, Object], ...]] = {
    kind: tuple(_fields(schema["properties"]["spec"], ("spec",))) for kind, schema in SCHEMAS.items()
}


def put(body: Object, path: Path, change: Callable[[Any, Any], None]) -> None:
    """Calls `change` with the parent of a path and its last key; parents that are not there are made."""
    place: Any = body
    for key, following in itertools.pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(place, list):
            if not place:
                place.append(empty)
            place = place[0]
        else:
            place = place.setdefault(key, empty)
    if isinstance(place, list) and not place:
        place.append(None)
    change(place, path[-1])


def _assign(value: Any) -> Callable[[Any, Any], None]:
    def change(place: Any, key: Any) -> None:
        place[key] = value

    return change


def _drop(place: Any, key: Any) -> None:
    if isinstance(place, list):
        place.clear()
    else:
        place.pop(key, None)


@st.composite
def damages(draw: st.DrawFn, kind: str) -> tuple[Path, str, Callable[[Any, Any], None]]:
    """Where, what in words, and how."""
    path, schema = draw(st.sampled_from(FIELDS[kind]))
    what = draw(st.sampled_from(["wrong type", "missing", "unknown field", "size", "text", "number"]))
    if what == "missing":
        return path, what, _drop
    if what == "unknown field" and "properties" in schema:
        name = draw(st.sampled_from(["colour", "Name", "ümlaut", "units "]))
        return (*path, name), what, _assign(1)
    if what == "size":
        if "maxItems" in schema:
            return path, what, _assign([{}] * (schema["maxItems"] + 1))
        if "maxProperties" in schema:
            return path, what, _assign({f"k{n}": "1" for n in range(schema["maxProperties"] + 1)})
        if "maxLength" in schema:
            return path, what, _assign("x" * (schema["maxLength"] + draw(st.integers(0, 1))))
        if "maximum" in schema:
            bound = draw(st.sampled_from([schema["maximum"], schema.get("minimum", 0)]))
            return path, what, _assign(bound + draw(st.sampled_from([-1, 0, 1])))
    if what == "text":
        return path, what, _assign(draw(st.sampled_from(TEXTS)))
    if what == "number":
        return path, what, _assign(draw(st.sampled_from(NUMBERS)))
    return path, "wrong type", _assign(copy.deepcopy(draw(st.sampled_from(WRONG))))


def _pool(**fields: Any) -> Callable[[Object], None]:
    """None removes."""

    def change(body: Object) -> None:
        pool = body["spec"]["pools"][0]
        pool.update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del pool[name]

    return change


def _spec(section: str, **fields: Any) -> Callable[[Object], None]:
    def change(body: Object) -> None:
        body["spec"].setdefault(section, {}).update(fields)

    return change


def _model(**fields: Any) -> Callable[[Object], None]:
    return lambda body: body["spec"].update(model=fields)


def _decoder(section: str, **fields: Any) -> Callable[[Object], None]:
    """Of a run whose model is small and dense."""

    def change(body: Object) -> None:
        body["spec"].update(model={"dimensions": SMALL_MODEL})
        _spec(section, **fields)(body)

    return change


def _mount(**fields: Any) -> Callable[[Object], None]:
    """Of a volume `v`."""

    def change(body: Object) -> None:
        body["spec"]["podTemplate"] = {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/mnt", **fields}],
        }

    return change


def _called(name: str, pool: str) -> Callable[[Object], None]:
    def change(body: Object) -> None:
        body["metadata"]["name"] = name
        body["spec"]["pools"][0]["name"] = pool

    return change


def _evaluated(name: str) -> Callable[[Object], None]:
    def change(body: Object) -> None:
        _called(name, "p")(body)
        body["spec"].setdefault("evaluation", {})

    return change


def _twice(body: Object) -> None:
    body["spec"]["pools"] = [body["spec"]["pools"][0]] * 2


def _no_units(body: Object) -> None:
    for pool in body["spec"]["pools"]:
        pool["units"] = 0


V6E = {"accelerator": "tpu-v6e-slice", "topology": "2x4"}
SMALL_MODEL = {"layers": 3, "width": 64, "heads": 4, "kvHeads": 2, "hidden": 128}
CONTRADICTIONS: tuple[tuple[str, str, Callable[[Object], None]], ...] = (
    ("spec.outer.fragments", "P > H", _spec("outer", fragments=25, interval=24, overlap=1)),
    ("spec.outer.overlap", "τ > H", _spec("outer", fragments=1, interval=24, overlap=25)),
    ("spec.quorum.min", "K > units", _spec("quorum", min=1024 + 1)),
    ("spec.pools[0]", "reservation without name", _pool(capacity="Reservation", reservationName=None)),
    ("spec.pools[0]", "name without reservation", _pool(capacity="Spot", reservationName="mine")),
    ("spec.pools[0].topology", "which machine?", _pool(**V6E, machineType=None)),
    ("spec.pools[0].machineType", "machine of another", _pool(**V6E, machineType="ct5p-hightpu-4t")),
    ("spec.pools[0].topology", "flat v5p", _pool(accelerator="tpu-v5p-slice", topology="4x4", machineType=None)),
    ("spec.pools[0].topology", "sides in another order", _pool(**{**V6E, "topology": "4x2"}, machineType=None)),
    ("spec.pools", "no units at all", _no_units),
    ("spec.pools", "the same pool twice", _twice),
    ("metadata.name", "host names too long", _called("r" * (NAMES_LIMIT - 15), "p" * 16)),
    ("metadata.name", "an evaluator's label too long", _evaluated("r" * (EVALUATED_LIMIT + 1))),
    ("spec.pools[0].nodeSelector", "17 labels", _pool(nodeSelector={f"k{n}": "v" for n in range(17)})),
    ("metadata.name", "an upper-case name", _called("Run", "p")),
    ("metadata.name", "a dotted name", _called("a.b", "p")),
    ("metadata.name", "a digit first", _called("1a", "p")),
    ("spec.pools[0].name", "a pool with a dot", _called("r", "a.b")),
    ("spec.pools[0].name", "a pool with a hyphen last", _called("r", "a-")),
    ("spec.evaluation.tokens", "none", _spec("evaluation", tokens=0)),
    ("spec.model", "two models", _model(preset="1m", dimensions=SMALL_MODEL)),
    ("spec.model", "no model", _model()),
    ("spec.model.dimensions", "heads", _model(dimensions={**SMALL_MODEL, "kvHeads": 3})),
    ("spec.model.dimensions", "an odd head", _model(dimensions={**SMALL_MODEL, "width": 60})),
    ("spec.inner.mesh.expert", "experts of a dense model", _decoder("inner", mesh={"expert": 2})),
    ("spec.inner.mesh.tensor", "more chips than heads", _decoder("inner", mesh={"tensor": 4})),
    ("spec.inner.optimizer.name", "an optimiser of none", _decoder("inner", optimizer={"name": "lbfgs"})),
    ("spec.outer.fragments", "P > pieces", _decoder("outer", fragments=30, interval=30)),
    ("spec.syncer.shards", "S > pieces", _decoder("syncer", shards=30)),
    ("spec.model.dimensions", "no heads", _model(dimensions={**SMALL_MODEL, "heads": 0})),
    ("spec.data.uri", "a file that no pod has", _spec("data", uri="file:///nowhere/tokens")),
    ("spec.podTemplate.volumeMounts", "a mount of no volume", _mount(name="w")),
    ("spec.podTemplate.volumeMounts[0].mountPath", "a mount over the operator's", _mount(mountPath="/etc/atoll")),
    ("spec.podTemplate.volumeMounts[0].mountPath", "a mount at no place", _mount(mountPath="mnt")),
    ("spec.podTemplate.volumeMounts[0].subPath", "a folder above", _mount(subPath="a/../../b")),
    ("spec.podTemplate.volumes[0]", "no source", _spec("podTemplate", volumes=[{"name": "v"}])),
    ("spec.target", "no target", lambda body: body["spec"].update(target={})),
)  # fmt: skip
"""Field that the refusal has to name, what is wrong, and how it is made so."""
UNIT_CONTRADICTIONS: tuple[tuple[str, str, Object], ...] = (
    ("spec.stream", "a stream too many", {"stream": 4, "streams": 4}),
    ("spec.slices", "slices of one host", {"accelerator": "tpu-v6e-slice", "topology": "2x2", "slices": 2}),
    ("spec.accelerator", "an accelerator of none", {"accelerator": "tpu-v9"}),
    ("spec.topology", "flat v5p", {"accelerator": "tpu-v5p-slice", "topology": "4x4"}),
    ("spec.topology", "a side of nothing", {"accelerator": "tpu-v5p-slice", "topology": "4x4x0"}),
    ("spec.machineType", "machine of another", {**V6E, "machineType": "ct5p-hightpu-4t"}),
)


@st.composite
def broken_runs(draw: st.DrawFn, small: bool = False) -> Broken:
    """A TrainingRun with one contradiction, or one or two damages."""
    body = draw(runs(small))
    if draw(st.integers(0, 3)) == 0:
        field, what, change = draw(st.sampled_from(CONTRADICTIONS))
        change(body)
        return Broken(body, field, what)
    return _damaged(draw, body)


@st.composite
def broken_units(draw: st.DrawFn) -> Broken:
    """A LearnerUnit with one contradiction, or one or two damages."""
    body = draw(units())
    if draw(st.integers(0, 3)) == 0:
        field, what, fields = draw(st.sampled_from(UNIT_CONTRADICTIONS))
        body["spec"].update(fields)
        return Broken(body, field, what)
    return _damaged(draw, body)


def _damaged(draw: st.DrawFn, body: Object) -> Broken:
    field = what = ""
    for _ in range(draw(st.integers(1, 2))):
        path, kind, change = draw(damages(body["kind"]))
        try:
            put(body, path, change)
        except (AttributeError, TypeError, KeyError, IndexError):
            break  # the first damage left nothing that the second could be done to
        field, what = written(path), f"{what}, {kind}" if what else kind
    return Broken(body, field, what)
