"""How a pool's nodes are bought: the labels that GKE gives such nodes, and the taints that pods have to tolerate.

Source: labels and taints in GKE's cluster autoscaler; xpk selects reservations by the same label. Nodes of queued
provisioning (`cloud.google.com/gke-queued`, a ProvisioningRequest for each scale-up) are another thing: a pool reaches
them by its own `nodeSelector` and `tolerations`.
"""

from __future__ import annotations

from atoll_operator.api.common import Toleration
from atoll_operator.api.pool import Pool

SPOT = "cloud.google.com/gke-spot"
FLEX_START = "cloud.google.com/gke-flex-start"
RESERVATION = "cloud.google.com/reservation-name"
_LABELS = {"Spot": SPOT, "FlexStart": FLEX_START}


def selector(pool: Pool) -> dict[str, str]:
    """Labels of the nodes; on-demand nodes bear none that says so."""
    if pool.reservation_name is not None:
        return {RESERVATION: pool.reservation_name}
    label = _LABELS.get(pool.capacity)
    return {label: "true"} if label is not None else {}


def tolerations(pool: Pool) -> tuple[Toleration, ...]:
    """Of taints that such nodes may bear: GKE's label and taint have one key and one value."""
    label = _LABELS.get(pool.capacity)
    return () if label is None else (Toleration(key=label, value="true", effect="NoSchedule"),)
