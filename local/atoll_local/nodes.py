"""The nodes of the local cluster, labelled and tainted as on GKE."""

from __future__ import annotations

from dataclasses import dataclass

TPU_RESOURCE = "google.com/tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    pool: str
    machine_type: str
    accelerator: str = ""
    """GKE's accelerator label; empty for a machine without TPUs."""
    topology: str = ""
    chips: int = 0
    """Chips on this host."""

    @property
    def labels(self) -> dict[str, str]:
        labels = {
            "cloud.google.com/gke-nodepool": self.pool,
            "node.kubernetes.io/instance-type": self.machine_type,
        }
        if self.chips:
            labels |= {
                "cloud.google.com/gke-tpu-accelerator": self.accelerator,
                "cloud.google.com/gke-tpu-topology": self.topology,
                "cloud.google.com/gke-accelerator-count": str(self.chips),
            }
        return labels

    @property
    def taints(self) -> list[dict[str, str]]:
        """GKE taints each TPU node so that nothing else lands on it."""
        return [{"key": TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}] if self.chips else []


def tpu(
    pool: str, machine_type: str, accelerator: str, topology: str, hosts: int, chips: int = 4
) -> list[Node]:
    """Return the hosts of one slice. On GKE they are one node pool."""
    return [
        Node(
            name=f"{pool}-{host}",
            pool=pool,
            machine_type=machine_type,
            accelerator=accelerator,
            topology=topology,
            chips=chips,
        )
        for host in range(hosts)
    ]


NODES: tuple[Node, ...] = (
    Node(name="cpu-0", pool="cpu", machine_type="e2-standard-8"),
    *tpu("v6e-2x2", "ct6e-standard-4t", "tpu-v6e-slice", "2x2", hosts=1),
    *tpu("v6e-2x4", "ct6e-standard-4t", "tpu-v6e-slice", "2x4", hosts=2),
    *tpu("v5p-2x2x1", "ct5p-hightpu-4t", "tpu-v5p-slice", "2x2x1", hosts=1),
)
"""One CPU node for operator, syncer and DNS, and three slices on four TPU hosts."""

TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    # One thread per process: several learners share the cores.
    "OMP_NUM_THREADS": "1",
    # Keep freed memory. By default glibc returns the arrays of a step to the kernel, which maps and clears them anew
    # for the next one. This takes a quarter of a step. In bytes. One arena, because others map what exceeds 64 MiB.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    # Compiling takes a third of the time, and steps take the same time. XLA reads no flag after one without dashes.
    "XLA_FLAGS": "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""Environment of a learner's process on this machine, with CPUs in place of TPU chips."""
