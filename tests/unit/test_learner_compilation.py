"""The compilation cache in the run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from atoll_runtime.learner import compilation

HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture
def hits() -> Iterator[list[str]]:
    """Events of programs found; JAX's settings are as before afterwards."""
    before = {name: jax.config.values[name] for name in jax.config.values if "cache" in name}
    seen: list[str] = []

    def listen(event: str, **_: object) -> None:
        if event == HIT:
            seen.append(event)

    jax.monitoring.register_event_listener(listen)
    compilation_cache.reset_cache()
    yield seen
    jax.monitoring.unregister_event_listener(listen)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_what_one_incarnation_compiled_the_next_one_finds(
    tmp_path: Path, hits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "LEAST_SECONDS", 0.0)
    compilation.keep(f"file://{tmp_path}/run/")

    def incarnation() -> jax.Array:
        """A function of its own each time: what this process has compiled does not count."""

        def program(x: jax.Array) -> jax.Array:
            return jnp.sin(x) @ x

        return jax.jit(program)(jnp.ones((3, 3)))

    first = incarnation()
    found_before = len(hits)
    assert list((tmp_path / "run" / compilation.FOLDER).iterdir())
    assert (incarnation() == first).all()
    assert len(hits) > found_before
