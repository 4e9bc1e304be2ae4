"""Programs are compiled once; loaded ones compute the same; if one host lacks a program, all compile it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, monitoring
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.learner.agree import Agreement
from atoll_runtime.learner.compilation import Programs
from atoll_runtime.learner.compilation_store import CompilationStore
from atoll_runtime.learner.mesh import span


def advance(theta: dict[str, Array], rate: Any, *, power: int) -> dict[str, Array]:
    return {name: value - rate * jnp.sin(value) ** power for name, value in theta.items()}


def traced(x: Array) -> Array:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def theta(size: int = 64) -> dict[str, Array]:
    return {"a": jnp.linspace(0.0, 3.0, size), "b": jnp.ones((2, size))}


class Unit:
    """A host's incarnations over one folder and one bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores: list[CompilationStore] = []
        self.agreement: Any = Agreement(span(jax.devices()[:1]))

    def programs(self, agreement: Any = None) -> Programs:
        bucket = Bucket(f"file://{self.folder}/bucket")
        store = CompilationStore(bucket, self.folder / "trial", "v", "s", 0)
        self.stores.append(store)
        return Programs(agreement or self.agreement, store)

    def end(self, programs: Programs) -> None:
        """After its first step."""
        programs.settle()
        self.stores[-1].close(20)


@pytest.fixture(autouse=True)
def jax_cache() -> Iterator[None]:
    """JAX's own cache, which other suites of this process use, is off: see `CompilationStore.of`."""
    name = "jax_compilation_cache_dir"
    before = jax.config.values[name]
    jax.config.update(name, None)
    reset_cache()
    yield
    jax.config.update(name, before)
    reset_cache()


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    found = Unit(tmp_path)
    yield found
    for store in found.stores:
        store.settle()
        store.close(20)


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """What JAX has compiled since."""
    seen: list[str] = []

    def listen(event: str, _: float, **__: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            seen.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    yield seen
    monitoring.unregister_event_duration_listener(listen)


def step(programs: Programs) -> Any:
    return programs("step", jax.jit(advance, static_argnames=("power",), donate_argnums=0))


def test_next_incarnation_compiles_nothing_and_computes_the_same(unit: Unit, compilations: list[str]) -> None:
    first = unit.programs()
    plain = jax.jit(advance, static_argnames=("power",))(theta(), np.float32(0.1), power=2)
    fresh = step(first)(theta(), np.float32(0.1), power=2)
    assert (first.compiled, first.loaded) == (1, 0)
    unit.end(first)

    second, arguments = unit.programs(), theta()
    compilations.clear()
    loaded = step(second)(arguments, np.float32(0.1), power=2)
    assert (second.compiled, second.loaded, compilations) == (0, 1, [])
    assert 0 < second.seconds < 60
    for name in plain:
        assert np.array_equal(plain[name], fresh[name]) and np.array_equal(plain[name], loaded[name])
    assert arguments["a"].is_deleted(), "donated, as by the compiled one"


def test_each_shape_and_static_argument_has_its_own_program(unit: Unit) -> None:
    programs = unit.programs()
    call = step(programs)
    results = [
        call(theta(size), np.float32(0.1), power=power)
        for size, power in [(64, 1), (64, 2), (32, 1), (64, 1)]
    ]
    assert programs.compiled == 3
    assert not np.array_equal(results[0]["a"], results[1]["a"])
    assert np.array_equal(results[0]["a"], results[3]["a"])


def test_program_that_cannot_be_loaded_is_compiled_and_replaced(
    unit: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    first = unit.programs()
    wanted = step(first)(theta(), np.float32(0.1), power=2)
    unit.end(first)
    (name,) = [path.name for path in unit.folder.glob("bucket/cache/v/s/host-0/step*")]
    other = CompilationStore(Bucket(f"file://{unit.folder}/bucket"), unit.folder / "trial", "v", "s", 0)
    other.put(name, lambda: b"of another machine")
    other.settle()
    other.close(20)

    second = unit.programs()
    found = step(second)(theta(), np.float32(0.1), power=2)
    assert f"{name} is compiled again" in caplog.text
    assert np.array_equal(found["a"], wanted["a"])
    unit.end(second)
    third = unit.programs()
    step(third)(theta(), np.float32(0.1), power=2)
    assert third.loaded == 1


def test_program_with_a_host_callback_is_not_kept(unit: Unit) -> None:
    for _ in range(2):
        programs = unit.programs()
        found = programs("task", jax.jit(traced))(jnp.ones(4))
        assert np.allclose(found, np.sin(1.0))
        assert (programs.compiled, programs.loaded) == (1, 0)
        unit.end(programs)
    assert not list(unit.folder.rglob("task*"))
