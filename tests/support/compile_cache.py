"""A cache of JAX's compiled programs, kept between runs of the tests and shared between their workers."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

import jax

from atoll_local.paths import cache_dir


def keep_programs() -> None:
    """Lets this process load what an earlier one compiled with the same JAX on the same kind of CPU.

    Applies only to this process. Processes that a test starts decide for themselves, because the hosts of a unit must
    all compile or all load.
    """
    for name, value in SETTINGS.items():
        jax.config.update(name, value)


def kept_programs() -> dict[str, str]:
    """The same settings, as the environment of a process that compiles alone."""
    return {name.upper(): str(value) for name, value in SETTINGS.items()}


def _folder() -> str:
    facts = [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    facts += [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")][:1]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    return str(cache_dir() / "tests" / digest)


SETTINGS = {
    "jax_compilation_cache_dir": _folder(),
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
