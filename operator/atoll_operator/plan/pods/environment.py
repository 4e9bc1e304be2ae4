"""Environment variables for libtpu and JAX. All values are computed from the spec, never from live pods, because a
stale value hangs a mesh. They name only hosts of the own unit: JAX makes one cluster of all processes that
`MEGASCALE_*` joins, and that cluster fails as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atoll_operator.plan.pods.topology import Slice
from atoll_runtime.contract import COORDINATOR_PORT, LIBTPU_PORT

MEGASCALE_PORT = 8080
"""Port of libtpu's transport between the slices of a unit (libtpu's default)."""
LIBTPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
"""Variable with libtpu's flags. libtpu ends the process when it does not know a flag."""
ABORT = "--megascale_error_reporter_abort_on_hang=true --megascale_error_reporter_abort_on_error=true"
"""Ends the processes after a hang or an error between slices. Without these flags they would wait for ever.
libtpu 0.0.42 accepts both."""


def tpu_environment(
    shape: Slice, slices: int, host: int, host_name: Callable[[int], str], arguments: str = ""
) -> Mapping[str, str]:
    """Variables of one host of a unit, counted slice by slice; `arguments` are libtpu flags of the administrator, which
    come last and override ours. Learners make the lists of hosts themselves, from one name in their contract: such
    lists grow with the square of the slice, and the pods of 2,304 hosts would have 0.5 GB of them."""
    number, worker = divmod(host, shape.hosts)
    several = {
        "MEGASCALE_NUM_SLICES": str(slices),
        "MEGASCALE_SLICE_ID": str(number),
        "MEGASCALE_COORDINATOR_ADDRESS": host_name(0),
        "MEGASCALE_PORT": str(MEGASCALE_PORT),
        LIBTPU_ARGUMENTS: f"{ABORT} {arguments}".rstrip(),
    }
    return {
        "TPU_WORKER_ID": str(worker),
        "TPU_PROCESS_PORT": str(LIBTPU_PORT),
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_TOPOLOGY": shape.topology,
        "TPU_TOPOLOGY_WRAP": shape.wrap,
        "TPU_HOST_BOUNDS": shape.host_bounds,
        "TPU_CHIPS_PER_HOST_BOUNDS": shape.chip_bounds,
        "TPU_SKIP_MDS_QUERY": "true",
        "JAX_COORDINATOR_PORT": str(COORDINATOR_PORT),
        **(several if slices > 1 else {}),
    }
