"""Additions of a user to the pods of a run, in the shape that they have in a pod. The API server checks them when it
gets the pods; the rules here only protect what the operator sets itself."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from atoll_operator.api.common import Label, Name, keyed_by
from atoll_operator.api.stored import UNREADABLE
from atoll_runtime.contract import Section
from atoll_runtime.contract.rules import cel, rule

NOT_OURS = cel(
    rule(
        "!self.exists(key, ['atoll.dev/', 'kueue.x-k8s.io/', 'app.kubernetes.io/managed-by'].exists("
        "prefix, key.startsWith(prefix)))",
        "must not have keys that the operator sets: atoll.dev/*, kueue.x-k8s.io/*, app.kubernetes.io/managed-by",
    )
)


LEVELS = 32
"""Levels of a part. Kubernetes' own have fewer than ten."""


def _shallow(part: dict[str, Any]) -> dict[str, Any]:
    """Refuses what no encoder of this process could write into a pod."""
    layer: list[Any] = [part]
    for _ in range(LEVELS):
        layer = [
            below
            for each in layer
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not layer:
            return part
    raise PydanticCustomError(UNREADABLE, "must have at most {levels} levels", {"levels": LEVELS})


PodPart = Annotated[
    dict[str, Any],
    AfterValidator(_shallow),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""An object that goes into the pods as it is. Kubernetes alone knows its fields."""
MAX_VARIABLES = 64
MAX_VALUE = 4096
"""Characters of a variable's value."""


class Variable(Section):
    """An environment variable, with a value or a source of its value."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        cel(
            rule(
                "!(self in ['HOME', 'JAX_COORDINATOR_PORT']) && "
                "!['ATOLL_', 'TPU_', 'MEGASCALE_'].exists(prefix, self.startsWith(prefix))",
                "must not be a variable of the operator: HOME, JAX_COORDINATOR_PORT, ATOLL_*, TPU_*, MEGASCALE_*",
            )
        ),
    ]
    """Name of the variable. Names that the operator, libtpu or JAX's cluster detection set are refused."""
    value: Annotated[str, Field(max_length=MAX_VALUE)] | None = None
    """Literal value."""
    value_from: PodPart | None = None
    """Source of the value, instead of `value`, such as a key of a Secret or ConfigMap in the namespace of the run. As
    in a pod: `kubectl explain pod.spec.containers.env.valueFrom`."""


class SecretName(Section):
    """A Secret in the namespace of the run."""

    name: Name
    """Name of a Secret of type kubernetes.io/dockerconfigjson."""


MAX_VOLUMES = 16
"""Volumes of one pod, and mounts of its container."""
Path = Annotated[str, Field(min_length=1, max_length=253)]


class Volume(Section):
    """One volume, of exactly one source. The sources are those of a pod: `kubectl explain pod.spec.volumes`."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=63),
        cel(rule("!(self in OUR_VOLUMES)", "must not be a volume of the operator: OUR_VOLUMES")),
    ]
    """Name by which it is mounted. Names of the operator's own volumes are refused."""
    persistent_volume_claim: PodPart | None = None
    """An existing claim (`claimName`) with access mode ReadOnlyMany or ReadWriteMany: all pods of all units use it.
    With `readOnly` no pod can write, and the kubelet leaves owners and permissions of the files as they are."""
    csi: PodPart | None = None
    """A volume that a CSI driver mounts for each pod, such as a bucket through GCS FUSE."""
    config_map: PodPart | None = None
    """Values of a ConfigMap as files."""
    secret: PodPart | None = None
    """Values of a Secret (`secretName`) as files."""
    empty_dir: PodPart | None = None
    """Scratch space of each pod. It is empty at first; a restart in place keeps it."""


class VolumeMount(Section):
    """Where the container sees a volume."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the volume."""
    mount_path: Annotated[
        Path,
        cel(
            rule(
                "self.matches('^(/([^/.:]|[.][^/.:])[^/:]*)+$')",
                "must be an absolute path without '..', ':' and a slash at its end, such as /mnt/data",
            ),
            rule(
                "!OUR_PATHS.exists(path, self == path || self.startsWith(path + '/') || path.startsWith(self + '/'))",
                "must not be, contain or lie below a path of the operator or the kernel: OUR_PATHS",
            ),
        ),
    ]
    """Absolute path. Paths of the operator, and those above and below them, are refused."""
    sub_path: Path | None = None
    """Folder or file of the volume to mount instead of all of it."""
    read_only: bool = False
    """True: the container cannot write to it."""


Volumes = Annotated[tuple[Volume, ...], Field(max_length=MAX_VOLUMES), keyed_by("name")]
VolumeMounts = Annotated[tuple[VolumeMount, ...], Field(max_length=MAX_VOLUMES), keyed_by("mountPath")]


class PodTemplate(Section):
    """Additions to all pods of a run."""

    labels: Annotated[dict[str, Label], Field(max_length=16), NOT_OURS] = Field(default_factory=dict)
    """Labels, such as those that a cost report groups by."""
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=16), NOT_OURS
    ] = Field(default_factory=dict)
    """Annotations, such as those that a log collector or a service mesh reads."""
    env: Annotated[tuple[Variable, ...], Field(max_length=MAX_VARIABLES), keyed_by("name")] = ()
    """Environment variables of the container, such as LIBTPU_INIT_ARGS or XLA_FLAGS."""
    image_pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=8), keyed_by("name")] = ()
    """Secrets with which the kubelet pulls the images."""
    priority_class_name: Name | None = None
    """PriorityClass of the pods, by which the scheduler decides who preempts whom."""
    volumes: Volumes = ()
    """Volumes for what is not in a bucket: a claim with a data set, GCS FUSE, a certificate, scratch space. Their
    sources are those of a pod: `kubectl explain pod.spec.volumes`."""
    volume_mounts: VolumeMounts = ()
    """Where the container mounts the volumes."""
