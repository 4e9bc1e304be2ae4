"""What libtpu and JAX read from a pod's environment.

Literals from the spec, never from live pods: a stale value hangs a mesh. Nothing in them is of another unit: JAX makes
one cluster of all processes that `MEGASCALE_*` joins, and that cluster dies as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll_operator.plan.pods.topology import Slice
from atoll_runtime.contract import COORDINATOR_PORT

LIBTPU_PORT = 8471
"""libtpu's mesh between the hosts of a slice."""
MEGASCALE_PORT = 8080
"""libtpu's transport between the slices of a unit; its default, which peers set as well."""
LIBTPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
"""Flags of libtpu, which ends the process at one that it does not know."""
ABORT = "--megascale_error_reporter_abort_on_hang=true --megascale_error_reporter_abort_on_error=true"
"""A hang or an error between slices ends the unit's processes, once it has been reported: they would wait for ever.
libtpu 0.0.42 takes both flags."""
LONGEST_VARIABLE = 131_071
"""Bytes of `name=value` that Linux gives to a process: 32 pages of 4 KiB, one byte of which ends the string."""


def tpu_environment(
    shape: Slice, slices: int, host: int, names: Sequence[str], arguments: str = ""
) -> Mapping[str, str]:
    """Of one host of a unit.

    Args:
        shape: of each of the unit's `slices`.
        host: over the whole unit, slice by slice.
        names: DNS names of all hosts of the unit, in order.
        arguments: flags of libtpu that the administrator has set; they come last, and so win.
    """
    number, worker = divmod(host, shape.hosts)
    own = names[number * shape.hosts : (number + 1) * shape.hosts]
    result = {
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(own),
        "TPU_PROCESS_ADDRESSES": _addresses(own),
        "TPU_PROCESS_PORT": str(LIBTPU_PORT),
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_TOPOLOGY": shape.topology,
        "TPU_TOPOLOGY_WRAP": shape.wrap,
        "TPU_HOST_BOUNDS": shape.host_bounds,
        "TPU_CHIPS_PER_HOST_BOUNDS": shape.chip_bounds,
        "TPU_SKIP_MDS_QUERY": "true",
        "JAX_COORDINATOR_PORT": str(COORDINATOR_PORT),
    }
    if slices > 1:
        result |= {
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(number),
            "MEGASCALE_COORDINATOR_ADDRESS": names[0],
            "MEGASCALE_PORT": str(MEGASCALE_PORT),
            LIBTPU_ARGUMENTS: f"{ABORT} {arguments}".rstrip(),
        }
    return result


def check_names(shape: Slice, names: Sequence[str]) -> None:
    """Whether a slice's host names fit into a variable; the largest slices need short ones.

    Raises:
        ValueError: they do not; the message names the field and what would be right.
    """
    size = len("TPU_PROCESS_ADDRESSES=") + len(_addresses(names[-shape.hosts :]))
    if size > LONGEST_VARIABLE:
        raise ValueError(
            f"topology {shape.topology}: the addresses of its {shape.hosts} hosts have {size} characters, and Linux "
            f"takes {LONGEST_VARIABLE} in a variable; shorter names of run, pool and namespace are right"
        )


def _addresses(names: Sequence[str]) -> str:
    return ",".join(f"{name}:{LIBTPU_PORT}" for name in names)
