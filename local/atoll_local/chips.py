"""CPUs in the place of TPU chips: the environment of a learner's process on this machine."""

from __future__ import annotations

TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    # One thread per process: several learners share the cores.
    "OMP_NUM_THREADS": "1",
    # Keep freed memory. By default glibc returns the arrays of a step to the kernel, which maps and clears them anew
    # for the next one: a quarter of a step's time. In bytes; one arena, because the others map what exceeds 64 MiB.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    # A third of the compiler's time, and steps of the same length. XLA reads no flag after one without dashes.
    "XLA_FLAGS": "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
