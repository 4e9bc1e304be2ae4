"""Volumes that a user adds to the pods of a run, in the shape that they have in a pod."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import Name, Quantity
from atoll_runtime.contract import Section

MAX_VOLUMES = 16
"""Of one pod, and as many mounts."""
Path = Annotated[str, Field(min_length=1, max_length=253)]
Mode = Annotated[int, Field(ge=0, le=0o777)]


class ObjectName(Section):
    """An object in the run's namespace."""

    name: Name
    """Of the object."""


class ClaimSource(Section):
    """A PersistentVolumeClaim in the run's namespace, which all pods of the run share."""

    claim_name: Name
    """Of a claim that exists, with access mode ReadOnlyMany or ReadWriteMany."""
    read_only: bool = False
    """True: no pod can write to it, and the kubelet leaves its owners and permissions as they are."""


class CsiSource(Section):
    """What a storage driver mounts for each pod anew, such as a bucket by GCS FUSE."""

    driver: Annotated[str, Field(min_length=1, max_length=63)]
    """Such as gcsfuse.csi.storage.gke.io."""
    read_only: bool = False
    """True: no pod can write to it."""
    fs_type: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """File system; the driver's own choice where not given."""
    volume_attributes: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] = (
        Field(default_factory=dict)
    )
    """As the driver reads them, such as bucketName and mountOptions."""
    node_publish_secret_ref: ObjectName | None = None
    """A Secret for the driver."""


class KeyFile(Section):
    """One value of a ConfigMap or Secret as a file."""

    key: Name
    """Of the value."""
    path: Path
    """Of the file, below the mount."""
    mode: Mode | None = None
    """Permissions of the file; `defaultMode` where not given."""


class FilesSource(Section):
    """Values of an object in the run's namespace, as files."""

    items: Annotated[tuple[KeyFile, ...], Field(max_length=32)] = ()
    """The values that become files; all of them, called as their keys, where none is given."""
    optional: bool = False
    """True: pods start without the object too."""
    default_mode: Mode | None = None
    """Permissions of the files: 0440 in YAML is octal, 288 in JSON. 0644 where not given."""


class ConfigMapSource(FilesSource):
    """A ConfigMap, as files."""

    name: Name
    """Of the ConfigMap."""


class SecretSource(FilesSource):
    """A Secret, as files."""

    secret_name: Name
    """Of the Secret."""


class EmptyDirSource(Section):
    """A folder of each pod, which is empty at first and goes with the pod; a restart in place keeps it."""

    medium: Literal["Memory"] | None = None
    """Memory counts towards the container's memory limit; the node's disk where not given."""
    size_limit: Quantity | None = None
    """A pod that puts more into it is evicted."""


class Volume(Section):
    """One volume, of exactly one source."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """By which it is mounted; those of the operator's own volumes are refused."""
    persistent_volume_claim: ClaimSource | None = None
    """A claim that exists. All pods of all units have it: one that a single node or pod may use (ReadWriteOnce)
    serves none of the others."""
    csi: CsiSource | None = None
    """Mounted by a storage driver for each pod anew."""
    config_map: ConfigMapSource | None = None
    """Values of a ConfigMap as files."""
    secret: SecretSource | None = None
    """Values of a Secret as files."""
    empty_dir: EmptyDirSource | None = None
    """Scratch space of each pod."""


class VolumeMount(Section):
    """Where the containers see a volume."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Of the volume."""
    mount_path: Path
    """Absolute; the operator's own paths, and those above and below them, are refused."""
    sub_path: Path | None = None
    """A folder or file of the volume, in the place of all of it."""
    read_only: bool = False
    """True: the container cannot write to it."""


Volumes = Annotated[tuple[Volume, ...], Field(max_length=MAX_VOLUMES)]
VolumeMounts = Annotated[tuple[VolumeMount, ...], Field(max_length=MAX_VOLUMES)]
