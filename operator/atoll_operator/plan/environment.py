"""What libtpu reads from a pod's environment.

Literals from the spec, never from live pods: a stale value hangs a mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll_operator.plan.tpu import Slice

LIBTPU_PORT = 8471
"""libtpu's mesh between the hosts of a slice."""


def tpu_environment(shape: Slice, host: int, names: Sequence[str]) -> Mapping[str, str]:
    """Of one host of a slice; `names` are the DNS names of all, in order. No MEGASCALE_*: one slice."""
    return {
        "TPU_WORKER_ID": str(host),
        "TPU_WORKER_HOSTNAMES": ",".join(names),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{name}:{LIBTPU_PORT}" for name in names),
        "TPU_PROCESS_PORT": str(LIBTPU_PORT),
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_TOPOLOGY": shape.topology,
        "TPU_CHIPS_PER_HOST_BOUNDS": shape.host_bounds,
        "TPU_SKIP_MDS_QUERY": "true",
    }
