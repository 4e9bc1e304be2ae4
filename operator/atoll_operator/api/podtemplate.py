"""Additions of a user to the pods of a run, in the shape that they have in a pod.

The API server checks them when it gets the pods; the rules here only protect what the operator sets itself.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atoll_operator.api.common import Label, Name, keyed_by
from atoll_operator.api.volumes import VolumeMounts, Volumes
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
