"""Where compiled programs lie: a pod's folder and the run's bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll_runtime.checkpoint.bucket import Bucket, StoreError
from atoll_runtime.contract import (
    CheckpointSpec,
    DataSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    RunContract,
    SyncerAddress,
    TargetSpec,
    UnitContract,
)
from atoll_runtime.learner import compilation_store
from atoll_runtime.learner.compilation_store import CompilationStore, shape_digest

Open = Callable[..., CompilationStore]


class World:
    """A bucket and pods; a process ends when the next one of its pod is opened, and at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = Bucket(f"file://{folder}/bucket")
        self.now = 1000.0
        self._stores: list[CompilationStore] = []

    def open(self, pod: str = "pod", shape: str = "s", host: int = 0, bucket: Any = None) -> CompilationStore:
        store = CompilationStore(
            bucket or self.bucket, self.folder / pod, shape, host, clock=lambda: self.now
        )
        self._stores.append(store)
        return store

    def kept(self, programs: dict[str, bytes], **where: Any) -> None:
        """A process that compiled these, made a step and ended."""
        store = self.open(**where)
        for key, content in programs.items():
            assert store.get(key) is None
            store.put(key, lambda content=content: content)
        store.settle()
        store.close(20)

    def close(self) -> None:
        for store in self._stores:
            store.settle()
            store.close(20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def test_what_one_process_compiled_the_next_one_in_the_pod_has_and_one_in_a_new_pod(world: World) -> None:
    world.kept({"step-1": b"program" * 1000, "init-1": b""})
    assert world.open().get("step-1") == b"program" * 1000
    fresh = world.open(pod="another")
    assert (fresh.get("step-1"), fresh.get("init-1")) == (b"program" * 1000, b"")
    assert fresh.get("step-2") is None


@pytest.mark.parametrize("other", [{"host": 1}, {"shape": "t"}], ids=["host", "shape"])
def test_hosts_and_shapes_have_programs_of_their_own(world: World, other: dict[str, Any]) -> None:
    world.kept({"step-1": b"program"})
    assert world.open(pod="another", **other).get("step-1") is None


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[:-1], id="half-written"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="one-bit"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:3], id="shorter-than-a-checksum"),
    ],
)
def test_a_spoilt_copy_is_not_used_and_made_good_by_the_next_compilation(
    world: World, spoil: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    world.kept({"step-1": b"program"})
    path = "cache/s/host-0/step-1"
    world.bucket.write(path, spoil(world.bucket.read(path)))
    world.kept({"step-1": b"program"}, pod="another")
    assert "the checksum does not match" in caplog.text
    assert world.open(pod="third").get("step-1") == b"program"


def test_nothing_is_written_before_the_first_step_has_ended(world: World) -> None:
    store = world.open()
    store.put("step-1", lambda: b"program")
    assert store.get("step-1") is None
    store.close(5)
    assert [path for path in world.bucket.list() if "step" in path] == []


def test_programs_that_may_have_killed_their_process_are_compiled_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.kept({"step-1": b"program"})
    assert world.open().get("step-1") == b"program"  # and the process dies before its first step ends
    world.kept({"step-1": b"better"})
    assert "the process before ended before its first step did" in caplog.text
    survivor = world.open()
    assert survivor.get("step-1") == b"better"
    survivor.settle()
    assert survivor.get("step-1") == b"better"
    assert world.open().get("step-1") == b"better", "a step has ended: no doubt is left"


class Broken(Bucket):
    """A bucket that does not answer."""

    def _call(self, name: str, path: str, *args: Any, **options: Any) -> Any:
        raise StoreError("no answer")


def test_without_a_bucket_the_pod_keeps_its_programs(world: World, tmp_path: Path) -> None:
    broken = Broken(f"file://{tmp_path}/bucket")
    world.kept({"step-1": b"program"}, bucket=broken)
    assert world.open(bucket=broken).get("step-1") == b"program"


def test_one_program_that_cannot_be_read_keeps_no_other_back(world: World, tmp_path: Path) -> None:
    class Torn(Bucket):
        def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
            if path.endswith("init-1"):
                raise StoreError("gone")
            return super().read(path, start, stop)

    world.kept({"init-1": b"a", "step-1": b"b"})
    store = world.open(pod="another", bucket=Torn(f"file://{tmp_path}/bucket"))
    assert (store.get("init-1"), store.get("step-1")) == (None, b"b")


def test_a_disk_that_takes_nothing_is_no_error(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    world.kept({"step-1": b"program"}, pod="file/pod")
    assert world.open(pod="another").get("step-1") is None


def test_a_program_that_cannot_be_written_down_costs_the_others_nothing(world: World) -> None:
    store = world.open()
    store.put("task-1", lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    store.put("step-1", lambda: b"program")
    store.settle()
    store.close(20)
    assert world.open(pod="another").get("step-1") == b"program"


def test_a_bucket_that_is_slow_is_not_waited_for_longer_than_said(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = threading.Event()

    class Slow(Bucket):
        def list(self, prefix: str = "") -> list[str]:
            answer.wait(30)
            return []

    monkeypatch.setattr(compilation_store, "FETCH_SECONDS", 0.1)
    store = world.open(bucket=Slow(f"file://{tmp_path}/bucket"))
    assert [store.get("step-1"), store.get("step-2")] == [None, None]
    assert not answer.is_set(), "it was not waited for"
    answer.set()


def test_the_shape_that_was_not_used_for_longest_goes_when_there_are_too_many(world: World) -> None:
    for number in range(compilation_store.SHAPES + 2):
        world.now = 1000.0 + (500 if number == 0 else number)
        world.kept({"step-1": b"program"}, pod=f"pod-{number}", shape=f"s{number}")
    held = {path.split("/")[1] for path in world.bucket.list("cache")}
    assert len(held) == compilation_store.SHAPES
    assert "s0" in held and f"s{compilation_store.SHAPES + 1}" in held
    assert not {"s1", "s2"} & held


def test_programs_that_nobody_uses_any_more_go_when_there_are_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_store, "MOST_PROGRAMS", 2)
    world.kept({"step-1": b"a", "step-2": b"b", "step-3": b"c"})
    store = world.open(pod="another")
    assert store.get("step-3") == b"c"
    store.settle()
    store.close(20)
    assert [path for path in world.bucket.list("cache") if "step" in path] == ["cache/s/host-0/step-3"]


def test_a_folder_that_is_full_takes_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation_store, "MOST_BYTES", 20)
    world.kept({"step-1": b"0123456789", "step-2": b"0123456789"})
    store = world.open()
    assert store.get("step-1") is not None
    assert store.get("step-2") is None


RUN = RunContract(
    name="r", namespace="n", uid="u", model=ModelSpec(preset="1m"), data=DataSpec(uri="gs://b/d", sequence_length=64),
    inner=InnerSpec(), outer=OuterSpec(), quorum=QuorumSpec(), target=TargetSpec(global_steps=1),
    checkpoint=CheckpointSpec(uri="gs://b/r"), shards=(SyncerAddress(host="h"),),
)  # fmt: skip
UNIT = UnitContract(unit="a", incarnation=1, host=0, hosts=2, coordinator="c:1", batch=8, stream=0, streams=2)


@pytest.mark.parametrize(
    ("run", "unit", "environment", "same"),
    [
        pytest.param({}, {"incarnation": 9, "coordinator": "c:2"}, {}, True, id="incarnation"),
        pytest.param({}, {"unit": "b", "stream": 1}, {}, True, id="another-unit-of-the-pool"),
        pytest.param({}, {"host": 1}, {}, True, id="host"),
        pytest.param({}, {"hosts": 4}, {}, False, id="hosts"),
        pytest.param({}, {"batch": 16}, {}, False, id="batch"),
        pytest.param({"model": ModelSpec(preset="10m")}, {}, {}, False, id="model"),
        pytest.param({"inner": InnerSpec(clip_norm=2.0)}, {}, {}, False, id="inner"),
        pytest.param({}, {}, {"TPU_TOPOLOGY": "4x4"}, False, id="topology"),
        pytest.param({}, {}, {"XLA_FLAGS": "--xla_x=1"}, False, id="flags"),
    ],
)
def test_a_shape_is_what_programs_depend_on(
    run: dict[str, Any], unit: dict[str, Any], environment: dict[str, str], same: bool
) -> None:
    digest = shape_digest(RUN.model_copy(update=run), UNIT.model_copy(update=unit), environment)
    assert (digest == shape_digest(RUN, UNIT, {})) is same
