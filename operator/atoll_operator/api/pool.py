"""`spec.pools` of a TrainingRun: where units run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import (
    DNS_LABEL,
    SERVICE_NAME,
    Accelerator,
    NodeSelector,
    Resources,
    Toleration,
    Topology,
    slice_rules,
)
from atoll_operator.api.learnerunit import MAX_SLICES
from atoll_runtime.contract import Section
from atoll_runtime.contract.rules import WHOLE, cel, checked, immutable, immutable_field, rule

MAX_UNITS = 256
"""Units of one pool."""
OF_ONE_KIND = "all units of a pool have slices of one kind; add a pool with another name and remove this one"
BOUGHT_ALIKE = "all units of a pool have the same capacity; add a pool with another name and remove this one"


class Pool(Section):
    """Units of one kind. Each has one TPU slice of this accelerator and topology, or several."""

    model_config = checked(
        *slice_rules("slicesPerUnit"),
        rule(
            "!has(self.capacity) || self.capacity != 'FlexStart' || (self.accelerator + ' ' + self.topology + "
            "(has(self.machineType) ? ' ' + self.machineType : '')) in FLEX_START",
            "FlexStart is offered only for slices of one host of FLEX_ACCELERATORS; use another capacity",
            "capacity",
        ),
        rule(
            "(has(self.capacity) && self.capacity == 'Reservation') == has(self.reservationName)",
            "must be given with capacity Reservation, and only then",
            "reservationName",
        ),
        immutable_field("machineType", OF_ONE_KIND),
        immutable_field("slicesPerUnit", OF_ONE_KIND, "1"),
        immutable_field("capacity", BOUGHT_ALIKE, "'OnDemand'"),
        immutable_field("reservationName", BOUGHT_ALIKE),
    )

    name: Annotated[str, Field(min_length=1, max_length=30, pattern=DNS_LABEL)]
    """Name of the pool. Its units are named RUN-NAME-0, RUN-NAME-1 and so on."""
    accelerator: Annotated[Accelerator, cel(immutable(OF_ONE_KIND))]
    """Accelerator of the slices: value of the node label cloud.google.com/gke-tpu-accelerator."""
    topology: Annotated[Topology, cel(immutable(OF_ONE_KIND))]
    """Topology of a slice: value of the node label cloud.google.com/gke-tpu-topology."""
    machine_type: Annotated[str, Field(max_length=63)] | None = None
    """Machine type. Required only where the topology exists on several, such as 2x4 of v5e and v6e."""
    units: Annotated[int, Field(ge=0, le=MAX_UNITS), cel(WHOLE)]
    """Units of the pool. Can be changed while the run trains; units with the highest numbers are removed first."""
    slices_per_unit: Annotated[int, Field(ge=1, le=MAX_SLICES)] = 1
    """Slices of one unit, which form one mesh and fail together. More than one requires slices of several hosts."""
    batch: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Sequences of one unit in one inner step. Defaults to `spec.inner.batch`."""
    capacity: Literal["OnDemand", "Spot", "Reservation", "FlexStart"] = "OnDemand"
    """Capacity of the nodes. Spot nodes can be taken away at any time. Reservation uses `reservationName`. FlexStart
    nodes are waited for in the queue of GKE; only for slices of one host, and not for every accelerator."""
    reservation_name: Annotated[str, Field(min_length=1, max_length=63, pattern=SERVICE_NAME)] | None = None
    """Specific reservation that the nodes were made from. Required with capacity Reservation, and only then allowed."""
    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the nodes, besides those of accelerator, topology and capacity."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=15)] = ()
    """Tolerations besides those for TPU nodes and for `capacity`, which the operator adds."""
    resources: Resources = Resources()
