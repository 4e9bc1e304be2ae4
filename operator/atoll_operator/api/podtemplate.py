"""Additions of a user to the pods of a run, in the shape that they have in a pod.

The API server checks them when it gets the pods; the rules here only protect what the operator sets itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import Label, Name, Quantity, keyed_by
from atoll_runtime.contract import Section
from atoll_runtime.contract.rules import cel, rule

NOT_OURS = cel(
    rule(
        "!self.exists(key, ['atoll.dev/', 'kueue.x-k8s.io/', 'app.kubernetes.io/managed-by'].exists("
        "prefix, key.startsWith(prefix)))",
        "must not have keys that the operator sets: atoll.dev/*, kueue.x-k8s.io/*, app.kubernetes.io/managed-by",
    )
)


class KeyReference(Section):
    """One value of a Secret or ConfigMap in the namespace of the run."""

    name: Name
    """Name of the object."""
    key: Name
    """Key of the value in it."""


class ValueSource(Section):
    """Source of a variable's value."""

    secret_key_ref: KeyReference | None = None
    """A value of a Secret, such as a token for downloads."""
    config_map_key_ref: KeyReference | None = None
    """A value of a ConfigMap."""


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
    value_from: ValueSource | None = None
    """Source of the value, instead of `value`."""


class SecretName(Section):
    """A Secret in the namespace of the run."""

    name: Name
    """Name of a Secret of type kubernetes.io/dockerconfigjson."""


MAX_VOLUMES = 16
"""Volumes of one pod, and mounts of its container."""
Path = Annotated[str, Field(min_length=1, max_length=253)]
Mode = Annotated[int, Field(ge=0, le=0o777)]


class ObjectName(Section):
    """An object in the namespace of the run."""

    name: Name
    """Name of the object."""


class ClaimSource(Section):
    """A PersistentVolumeClaim in the namespace of the run. All pods of the run share it."""

    claim_name: Name
    """Name of an existing claim with access mode ReadOnlyMany or ReadWriteMany."""
    read_only: bool = False
    """True: no pod can write to it, and the kubelet does not change owners and permissions of its files."""


class CsiSource(Section):
    """A volume that a CSI driver mounts for each pod, such as a bucket through GCS FUSE."""

    driver: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the driver, such as gcsfuse.csi.storage.gke.io."""
    read_only: bool = False
    """True: no pod can write to it."""
    fs_type: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """File system. Chosen by the driver if not set."""
    volume_attributes: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] = (
        Field(default_factory=dict)
    )
    """Attributes for the driver, such as bucketName and mountOptions."""
    node_publish_secret_ref: ObjectName | None = None
    """A Secret for the driver."""


class KeyFile(Section):
    """One value of a ConfigMap or Secret as a file."""

    key: Name
    """Key of the value."""
    path: Path
    """Path of the file below the mount."""
    mode: Mode | None = None
    """Permissions of the file. Defaults to `defaultMode`."""


class FilesSource(Section):
    """Values of an object in the namespace of the run, as files."""

    items: Annotated[tuple[KeyFile, ...], Field(max_length=32)] = ()
    """Values that become files. If empty, every value becomes a file named after its key."""
    optional: bool = False
    """True: pods start even if the object does not exist."""
    default_mode: Mode | None = None
    """Permissions of the files: octal such as 0440 in YAML, decimal such as 288 in JSON. Defaults to 0644."""


class ConfigMapSource(FilesSource):
    """A ConfigMap, as files."""

    name: Name
    """Name of the ConfigMap."""


class SecretSource(FilesSource):
    """A Secret, as files."""

    secret_name: Name
    """Name of the Secret."""


class EmptyDirSource(Section):
    """A folder of each pod, empty at first and deleted with the pod. A restart in place keeps it."""

    medium: Literal["Memory"] | None = None
    """Memory: in memory, which counts towards the memory limit of the container. On the disk of the node if not set."""
    size_limit: Quantity | None = None
    """Size at which the pod is evicted."""


class Volume(Section):
    """One volume, of exactly one source."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=63),
        cel(rule("!(self in OUR_VOLUMES)", "must not be a volume of the operator: OUR_VOLUMES")),
    ]
    """Name by which it is mounted. Names of the operator's own volumes are refused."""
    persistent_volume_claim: ClaimSource | None = None
    """An existing claim. All pods of all units use it, so a claim for a single node or pod (ReadWriteOnce) does not
    work."""
    csi: CsiSource | None = None
    """A volume that a CSI driver mounts for each pod."""
    config_map: ConfigMapSource | None = None
    """Values of a ConfigMap as files."""
    secret: SecretSource | None = None
    """Values of a Secret as files."""
    empty_dir: EmptyDirSource | None = None
    """Scratch space of each pod."""


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
    """Volumes for what is not in a bucket: a claim with a data set, GCS FUSE, a certificate, scratch space."""
    volume_mounts: VolumeMounts = ()
    """Where the container mounts the volumes."""
