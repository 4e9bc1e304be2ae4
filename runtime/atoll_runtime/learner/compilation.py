"""Compiled programs are kept in the run's folder of the bucket: a healed unit does not compile again."""

from __future__ import annotations

import jax

FOLDER = "compiled"
LEAST_SECONDS = 0.05
"""What compiles faster is not worth a request to the bucket."""


def keep(uri: str) -> None:
    """Points JAX's persistent cache at `uri`, the run's own root.

    Who can write there can run code in the run's pods, which holds for its checkpoints' readers as well: the
    folder is the run's own and is shared with no other. A cache that fails costs a compilation and a warning.
    """
    jax.config.update("jax_compilation_cache_dir", f"{uri.removeprefix('file://').rstrip('/')}/{FOLDER}")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # XLA's own sub-caches want a local file system.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
