"""Node labels and taints of each kind of capacity: on demand, Spot, reservation, flex-start.

Source: labels and taints in GKE's cluster autoscaler; xpk selects reservations by the same label. Nodes of queued
provisioning (`cloud.google.com/gke-queued`) are not covered: a pool selects them with `nodeSelector` and `tolerations`.
"""

from __future__ import annotations

from atoll_operator.api.common import Toleration
from atoll_operator.api.pool import Pool

SPOT = "cloud.google.com/gke-spot"
FLEX_START = "cloud.google.com/gke-flex-start"
RESERVATION = "cloud.google.com/reservation-name"
_LABELS = {"Spot": SPOT, "FlexStart": FLEX_START}


def selector(pool: Pool) -> dict[str, str]:
    """Labels of the pool's nodes. On-demand nodes have none for their capacity."""
    if pool.reservation_name is not None:
        return {RESERVATION: pool.reservation_name}
    label = _LABELS.get(pool.capacity)
    return {label: "true"} if label is not None else {}


def tolerations(pool: Pool) -> tuple[Toleration, ...]:
    """Tolerations for the taints of such nodes. GKE's label and taint have the same key and value."""
    label = _LABELS.get(pool.capacity)
    return () if label is None else (Toleration(key=label, value="true", effect="NoSchedule"),)
