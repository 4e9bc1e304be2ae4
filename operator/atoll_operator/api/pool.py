"""`spec.pools` of a TrainingRun: where units run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import NodeSelector, Resources, Toleration
from atoll_operator.api.learnerunit import MAX_SLICES
from atoll_runtime.contract import Section

MAX_UNITS = 256
"""Units of one pool."""
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
RESERVATION = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Names that Compute Engine gives."""


class Pool(Section):
    """Units of one kind: each is a TPU slice of this accelerator and topology, or several."""

    name: Annotated[str, Field(min_length=1, max_length=30, pattern=DNS_LABEL)]
    """Its units are called RUN-NAME-0, RUN-NAME-1 and so on."""
    accelerator: Annotated[str, Field(max_length=63)]
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    topology: Annotated[str, Field(max_length=16)]
    """Value of the node label cloud.google.com/gke-tpu-topology."""
    machine_type: Annotated[str, Field(max_length=63)] | None = None
    """Needed only where the topology exists on several machine types, such as 2x4 of v5e and v6e."""
    units: Annotated[int, Field(ge=0, le=MAX_UNITS)]
    """Can be changed while the run trains. The units with the highest numbers go first."""
    slices_per_unit: Annotated[int, Field(ge=1, le=MAX_SLICES)] = 1
    """Slices that are one mesh, and fail as one. More than one only of slices of several hosts."""
    batch: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Sequences of one unit in one inner step; `spec.inner.batch` where not given."""
    capacity: Literal["OnDemand", "Spot", "Reservation", "FlexStart"] = "OnDemand"
    """Of the nodes. Spot may be taken away at any time; Reservation is that of `reservationName`; FlexStart is waited
    for in GKE's queue, only by slices of one host, and not of every accelerator."""
    reservation_name: Annotated[str, Field(min_length=1, max_length=63, pattern=RESERVATION)] | None = None
    """The specific reservation that the nodes were made from. With Reservation, and only then."""
    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of nodes besides those of accelerator, topology and capacity."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=15)] = ()
    """Besides those of TPU nodes and of `capacity`, which the operator adds."""
    resources: Resources = Resources()
