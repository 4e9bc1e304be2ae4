"""CPUs in the place of TPU chips: the environment of a learner's process on this machine."""

from __future__ import annotations

TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    # One thread per process: several learners share the cores.
    "OMP_NUM_THREADS": "1",
    # A third of the compiler's time, and steps of the same length. XLA reads no flag after one without dashes.
    "XLA_FLAGS": "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
