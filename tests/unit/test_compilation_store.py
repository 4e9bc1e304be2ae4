"""Compiled programs in the run's bucket: they are kept, loaded by the next process, and compute the same."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from atoll_runtime.checkpoint.bucket import Bucket, StoreError
from atoll_runtime.contract import CheckpointSpec, InnerSpec, ModelSpec
from atoll_runtime.learner import compilation
from atoll_runtime.learner.compilation import CompilationStore, Programs, shape_digest
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.mesh import span
from atoll_runtime.simulate.blank import run_contract, unit_contract


@contextlib.contextmanager
def configured(**chosen: object) -> Iterator[None]:
    """JAX with other settings of its own cache."""
    before = {name: jax.config.values[name] for name in chosen}
    try:
        for name, value in chosen.items():
            jax.config.update(name, value)
        reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()


@pytest.fixture(autouse=True)
def no_jax_cache() -> Iterator[None]:
    """Turns JAX's own cache off, which other suites of this process use; see `CompilationStore.of`."""
    with configured(jax_compilation_cache_dir=None):
        yield


class World:
    """A bucket and pods. Opening a store starts a new process of its pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = Bucket(f"file://{folder}/bucket")
        self._stores: list[CompilationStore] = []

    def open(
        self, pod: str = "pod", versions: str = "v", shape: str = "s", host: int = 0, bucket: Any = None
    ) -> CompilationStore:
        trial = self.folder / f"{pod}.trial"
        store = CompilationStore(bucket or self.bucket, trial, versions, shape, host)
        self._stores.append(store)
        return store

    def compile_and_keep(self, programs: dict[str, bytes], **where: Any) -> None:
        """Runs a process that compiles these programs, makes a step and ends."""
        store = self.open(**where)
        for key, content in programs.items():
            assert store.get(key) is None
            store.put(key, lambda content=content: content)
        store.settle()
        store.close(20)

    def programs(self) -> Programs:
        """The programs of a process that compiles alone."""
        return Programs(Agreement(span(jax.devices()[:1])), self.open())

    def end(self, programs: Programs) -> None:
        """Ends the process after its first step."""
        programs.settle()
        self._stores[-1].close(20)

    def stored(self) -> list[str]:
        return [path for path in self.bucket.list("cache") if "step" in path]

    def close(self) -> None:
        for store in self._stores:
            store.settle()
            store.close(20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("where", "same"),
    [
        pytest.param({}, True, id="same-pod"),
        pytest.param({"pod": "another"}, True, id="another-pod"),
        pytest.param({"pod": "another", "host": 1}, False, id="another-host"),
        pytest.param({"pod": "another", "shape": "t"}, False, id="another-shape"),
        pytest.param({"pod": "another", "versions": "w"}, False, id="other-versions"),
    ],
)
def test_next_process_of_the_same_host_shape_and_versions_loads_the_programs(
    world: World, where: dict[str, Any], same: bool
) -> None:
    world.compile_and_keep({"step-1": b"program" * 1000, "init-1": b""})
    store = world.open(**where)
    found = (b"program" * 1000, b"") if same else (None, None)
    assert (store.get("step-1"), store.get("init-1")) == found
    assert store.get("step-2") is None


def test_nothing_is_uploaded_before_the_first_step_has_ended(world: World) -> None:
    store = world.open()
    store.put("step-1", lambda: b"program")
    store.close(5)
    assert world.stored() == []
    store.settle()
    store.close(20)
    assert world.stored() == ["cache/v/s/host-0/step-1"]


def test_programs_are_compiled_again_when_the_last_process_died_in_its_first_step(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.compile_and_keep({"step-1": b"program"})
    assert world.open().get("step-1") == b"program"  # this process dies before its first step ends
    world.compile_and_keep({"step-1": b"better"})
    assert "the last process ended before its first step" in caplog.text
    survivor = world.open()
    assert survivor.get("step-1") == b"better"
    survivor.settle()
    assert world.open().get("step-1") == b"better"


def test_bucket_that_fails_is_no_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Bucket):
        def _call(self, name: str, path: str, *args: Any, **options: Any) -> Any:
            raise StoreError("no answer")

        def write(self, path: str, data: bytes) -> None:
            raise StoreError("no answer")

    world.compile_and_keep({"step-1": b"program"}, bucket=Broken(world.bucket.uri))
    assert "compilation cache: StoreError: no answer" in caplog.text
    assert world.stored() == []


def test_slow_bucket_is_awaited_for_the_limit_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    class Slow(Bucket):
        def list(self, prefix: str = "") -> list[str]:
            answer.wait(30)
            return []

    monkeypatch.setattr(compilation, "FETCH_SECONDS", 0.1)
    store = world.open(bucket=Slow(world.bucket.uri))
    assert [store.get("step-1"), store.get("step-2")] == [None, None]
    assert not answer.is_set()
    answer.set()


def test_programs_of_unused_versions_are_removed_and_other_shapes_and_those_of_a_new_image_stay(
    world: World,
) -> None:
    for versions in ("old", "w"):
        world.compile_and_keep({"step-1": b"program"}, versions=versions)
    world.compile_and_keep({"step-1": b"program"}, shape="t", host=1)
    world.bucket.write("cache/new/s/host-0/step-1", b"its host 0 has not told yet that it is used")
    assert len(world.stored()) == 4
    world.bucket.write("cache/old/used", str(time.time() - compilation.UNUSED_SECONDS - 60).encode())
    world.compile_and_keep({"step-1": b"program"})
    assert world.stored() == [
        "cache/new/s/host-0/step-1",
        "cache/v/s/host-0/step-1",
        "cache/v/t/host-1/step-1",
        "cache/w/s/host-0/step-1",
    ]
    world.bucket.read("cache/new/used")


RUN, UNIT = run_contract(), unit_contract(hosts=2, batch=8, streams=2)


@pytest.mark.parametrize(
    ("run", "unit", "environment", "same"),
    [
        pytest.param({}, {"incarnation": 9, "coordinator": "c:2"}, {}, True, id="incarnation"),
        pytest.param({}, {"unit": "b", "stream": 1}, {}, True, id="another-unit-of-the-pool"),
        pytest.param({}, {"hosts": 4}, {}, False, id="hosts"),
        pytest.param({}, {"batch": 16}, {}, False, id="batch"),
        pytest.param({"model": ModelSpec(preset="10m")}, {}, {}, False, id="model"),
        pytest.param({"inner": InnerSpec(clip_norm=2.0)}, {}, {}, False, id="inner"),
        pytest.param({}, {}, {"TPU_TOPOLOGY": "4x4"}, False, id="topology"),
        pytest.param({}, {}, {"XLA_FLAGS": "--xla_x=1"}, False, id="flags"),
    ],
)
def test_shape_depends_on_all_that_programs_depend_on(
    run: dict[str, Any], unit: dict[str, Any], environment: dict[str, str], same: bool
) -> None:
    digest = shape_digest(RUN.model_copy(update=run), UNIT.model_copy(update=unit), environment)
    assert (digest == shape_digest(RUN, UNIT, {})) is same


@pytest.mark.parametrize(
    ("own", "enabled", "kept"),
    [
        pytest.param(None, True, True, id="default"),
        pytest.param("/cache", True, False, id="jax-has-its-own"),
        pytest.param(None, False, False, id="off"),
    ],
)
def test_programs_are_kept_unless_the_user_has_chosen_otherwise(
    tmp_path: Path, own: str | None, enabled: bool, kept: bool
) -> None:
    run = RUN.model_copy(update={"checkpoint": CheckpointSpec(uri=f"file://{tmp_path}")})
    with configured(jax_compilation_cache_dir=own, jax_enable_compilation_cache=enabled):
        store = CompilationStore.of(run, UNIT)
    assert (store is not None) == kept


def advance(theta: dict[str, Array], rate: Any, *, power: int) -> dict[str, Array]:
    return {name: value - rate * jnp.sin(value) ** power for name, value in theta.items()}


def traced(x: Array) -> Array:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def theta(size: int = 64) -> dict[str, Array]:
    return {"a": jnp.linspace(0.0, 3.0, size), "b": jnp.ones((2, size))}


def step(programs: Programs) -> Any:
    return programs("step", jax.jit(advance, static_argnames=("power",), donate_argnums=0))


def test_each_shape_and_static_argument_has_its_own_program(world: World) -> None:
    programs = world.programs()
    call = step(programs)
    results = [
        call(theta(size), np.float32(0.1), power=power)
        for size, power in [(64, 1), (64, 2), (32, 1), (64, 1)]
    ]
    assert programs.compiled == 3
    assert not np.array_equal(results[0]["a"], results[1]["a"])
    assert np.array_equal(results[0]["a"], results[3]["a"])


def test_functions_that_differ_in_the_names_of_their_arguments_load_the_same_program(world: World) -> None:
    named = [{"up": jnp.ones(4)}, {"gate": jnp.zeros(4)}]
    before = world.programs()
    doubled = before("double", jax.jit(lambda tensors: 2 * sum(tensors.values())))
    for each in named:
        doubled(each)
    world.end(before)
    assert len([path for path in world.bucket.list("cache") if "double" in path]) == 1
    after = world.programs()
    doubled = after("double", jax.jit(lambda tensors: 2 * sum(tensors.values())))
    found = [doubled(each) for each in named]
    assert (after.compiled, after.loaded) == (0, 2)
    assert [each.tolist() for each in found] == [[2.0] * 4, [0.0] * 4]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: gzip.compress(b"a program"), id="of-another-machine"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="one-bit"),
    ],
)
def test_program_that_cannot_be_loaded_is_compiled_and_replaced(
    world: World, spoil: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    first = world.programs()
    wanted = step(first)(theta(), np.float32(0.1), power=2)
    world.end(first)
    (path,) = world.stored()
    world.bucket.write(path, spoil(world.bucket.read(path)))

    second = world.programs()
    found = step(second)(theta(), np.float32(0.1), power=2)
    assert f"{path.rpartition('/')[2]} is compiled again" in caplog.text
    assert np.array_equal(found["a"], wanted["a"])
    world.end(second)
    third, arguments = world.programs(), theta()
    again = step(third)(arguments, np.float32(0.1), power=2)
    assert (third.compiled, third.loaded) == (0, 1) and 0 < third.seconds < 60
    assert np.array_equal(again["a"], wanted["a"])
    assert arguments["a"].is_deleted(), "donated, as by the compiled one"


def test_program_with_a_host_callback_is_not_kept(world: World) -> None:
    for _ in range(2):
        programs = world.programs()
        found = programs("task", jax.jit(traced))(jnp.ones(4))
        assert np.allclose(found, np.sin(1.0))
        assert (programs.compiled, programs.loaded) == (1, 0)
        world.end(programs)
    assert not list(world.folder.rglob("task*"))
