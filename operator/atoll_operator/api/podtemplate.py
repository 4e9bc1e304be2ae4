"""What a user adds to the pods of a run, in the shape that it has in a pod."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atoll_operator.api.common import Label, Name
from atoll_operator.api.volumes import VolumeMounts, Volumes
from atoll_runtime.contract import Section


class KeyReference(Section):
    """One value of a Secret or ConfigMap in the run's namespace."""

    name: Name
    """Of the object."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Of the value in it."""


class ValueSource(Section):
    """Where a variable's value comes from."""

    secret_key_ref: KeyReference | None = None
    """A value of a Secret, such as a token for downloads."""
    config_map_key_ref: KeyReference | None = None
    """A value of a ConfigMap."""


MAX_VARIABLES = 64
MAX_VALUE = 4096
"""Characters of a variable's value."""


class Variable(Section):
    """A variable of the environment: with a value, or with where it comes from."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """As a program reads it; those that operator, libtpu or JAX's cluster detection set are refused."""
    value: Annotated[str, Field(max_length=MAX_VALUE)] | None = None
    """As it is."""
    value_from: ValueSource | None = None
    """In the place of `value`."""


class SecretName(Section):
    """A Secret in the run's namespace."""

    name: Name
    """Of type kubernetes.io/dockerconfigjson."""


class PodTemplate(Section):
    """What all pods of a run have besides what the operator gives them."""

    labels: Annotated[dict[str, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Such as those by which costs are told apart."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """Such as those that a log collector or a mesh of services reads."""
    env: Annotated[tuple[Variable, ...], Field(max_length=MAX_VARIABLES)] = ()
    """Of the container, such as LIBTPU_INIT_ARGS or XLA_FLAGS."""
    image_pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=8)] = ()
    """With which the images are pulled."""
    priority_class_name: Name | None = None
    """A PriorityClass of the cluster, by which the scheduler lets pods give way to others."""
    volumes: Volumes = ()
    """What is not in a bucket: a claim with a data set, GCS FUSE, a certificate, scratch space."""
    volume_mounts: VolumeMounts = ()
    """Where the container has them."""
