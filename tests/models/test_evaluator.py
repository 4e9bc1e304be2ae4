"""The evaluator follows real checkpoints in a bucket: each is evaluated once, the newest first, and stays evaluated."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from atoll_cli.demo.evaluation import evaluate_both
from atoll_cli.simulate.runfile import read_manifest
from atoll_cli.trial.command import BUILT_IN
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_runtime.checkpoint import Cut, GlobalStore, StoreError
from atoll_runtime.contract import (
    DataSpec,
    Dimensions,
    EvaluationReport,
    EvaluationSpec,
    EvaluatorStatus,
    InnerSpec,
    ModelSpec,
    dump,
)
from atoll_runtime.data import Reader, write_text
from atoll_runtime.data.catalogue import Shard, Split
from atoll_runtime.data.packing import segments
from atoll_runtime.data.writer import held_out
from atoll_runtime.evaluate import evaluate
from atoll_runtime.evaluator.__main__ import metrics
from atoll_runtime.evaluator.follower import RETRY_SECONDS, Follower
from atoll_runtime.evaluator.measure import Loss, Measure, WrongTensors
from atoll_runtime.evaluator.results import Results, settings
from atoll_runtime.model import initial
from atoll_runtime.model.objective import objective

DATA = DataSpec(uri="file:///data", sequence_length=32)
SPLIT = Split(shards=(Shard(file="heldout-0.bin", tokens=1000, crc32c=7),))
MODEL = ModelSpec(dimensions=Dimensions(layers=1, width=16, heads=2, kv_heads=1, hidden=16))
LENGTH = 32


class World:
    """A bucket, a clock, and evaluators that come and go."""

    def __init__(self, folder: Path) -> None:
        self.store = GlobalStore(f"file://{folder}/run")
        self.now = 1_000.0
        self.measured: list[float] = []
        """The parameter of each checkpoint that was evaluated."""

    def save(self, *steps: int, value: float | None = None) -> None:
        for step in steps:
            theta = {"w": np.full(4, step if value is None else value, np.float32)}
            self.store.save(Cut(step, theta, {"w": np.zeros(4, np.float32)}, (step,)))

    def evaluator(self, spec: EvaluationSpec | None = None, split: Split = SPLIT) -> Follower:
        results = Results(self.store.bucket, settings(DATA, spec or EvaluationSpec(), split))
        parts = self.store, results, self.measure
        return Follower("u", "heldout", lambda: parts, lambda: self.now)

    def measure(self, theta: dict[str, np.ndarray]) -> Loss:
        value = float(theta["w"][0])
        self.measured.append(value)
        return Loss(100 - value, 64)

    def objects(self) -> list[str]:
        return self.store.bucket.list("evaluations")


def work(follower: Follower) -> EvaluatorStatus:
    """Until there is nothing to do."""
    for _ in range(20):
        if not follower.advance():
            return follower.report()
    raise AssertionError("it always finds something to do")


def silent(*_: object, **options: object) -> None:
    """A call to a bucket that does not answer."""
    raise StoreError("gs://b: no answer within 60 s")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_checkpoint_is_evaluated_once_the_newest_first(world: World) -> None:
    world.save(0, 10, 20)
    follower = world.evaluator()
    assert follower.report().phase == "Starting"
    assert follower.advance()
    world.save(30)
    report = work(follower)
    assert world.measured == [20, 30, 10, 0]
    assert report == EvaluatorStatus(
        run_uid="u",
        phase="Waiting",
        message="waits for a checkpoint",
        newest=EvaluationReport(step=30, loss=70, tokens=64, split="heldout", seconds=0, time=1000),
        evaluated=4,
    )
    assert not follower.advance()


def test_restarted_evaluator_knows_what_was_evaluated(world: World) -> None:
    world.save(0, 10)
    first = world.evaluator()
    first.advance()
    world.save(20, 30)
    world.store.prune(1, 30, math.inf)  # of those that go 0 was listed and waited for its turn
    before = work(first)
    assert (before.skipped, before.evaluated, world.measured) == (1, 1, [10, 30])
    again = world.evaluator()
    assert not again.advance()
    assert again.report() == before.model_copy(update={"skipped": 0})
    assert world.measured == [10, 30]


def test_failed_clean_up_is_tried_again_and_counts_nothing_twice(world: World, monkeypatch) -> None:
    world.save(0, 10, 20)
    follower = world.evaluator()
    follower.advance()
    follower.advance()
    world.save(30)
    world.store.prune(1, 30, math.inf)

    with monkeypatch.context() as broken:
        broken.setattr(Results, "prune", silent)
        for _ in range(2):
            with pytest.raises(StoreError):
                follower.advance()
    assert work(follower).skipped == 1
    assert world.objects() == ["evaluations/30.json"]


def test_what_has_no_valid_result_of_the_same_measurement_is_evaluated_anew(world: World) -> None:
    world.save(10)
    work(world.evaluator())
    other = EvaluationSpec(tokens=128)
    work(world.evaluator(other))
    assert world.measured == [10, 10], "another measurement"
    world.store.bucket.delete_tree("global/10")
    world.save(10, value=11)
    work(world.evaluator(other))
    assert world.measured == [10, 10, 11], "another checkpoint of the same step"
    anew = Split(shards=(Shard(file="heldout-0.bin", tokens=1000, crc32c=8),))
    work(world.evaluator(other, anew))
    assert world.measured == [10, 10, 11, 11], "the data set was imported anew under the same name"
    world.store.bucket.write("evaluations/10.json", b'{"format": 3}')
    work(world.evaluator(other, anew))
    assert world.measured == [10, 10, 11, 11, 11], "a result of another version"
    assert not world.evaluator(other, anew).advance()


def test_a_checkpoint_that_replaces_the_newest_is_measured_without_a_restart(world: World) -> None:
    world.save(0, 10)
    follower = world.evaluator()
    work(follower)
    world.store.bucket.delete_tree("global/10")
    world.save(10, value=11)
    report = work(follower)
    assert world.measured == [10, 0, 11]
    assert report.newest is not None and report.newest.loss == 89
    assert (report.evaluated, report.skipped) == (2, 0)
    assert not world.evaluator().advance()


def test_damaged_checkpoint_delays_no_other_and_is_tried_again(world: World) -> None:
    world.save(10, 20)
    part = "global/20/shard-0-of-1.json"
    whole = world.store.bucket.read(part)
    world.store.bucket.write(part, whole.replace(b'"theta":[', b'"theta":[1'))
    follower = world.evaluator()
    report = work(follower)
    assert world.measured == [10]
    assert report.newest is not None and report.newest.step == 10
    assert report.error.startswith("global step 20 is not evaluated: theta w: checksum")
    world.store.bucket.write(part, whole)
    world.now += RETRY_SECONDS - 1
    assert not follower.advance()
    world.now += 2
    assert work(follower).error == ""
    assert world.measured == [10, 20]


def test_damaged_manifest_of_an_evaluated_checkpoint_does_not_stop_a_restarted_evaluator(
    world: World,
) -> None:
    world.save(10, 20)
    work(world.evaluator())
    manifest = "global/10/manifest.json"
    world.store.bucket.write(manifest, world.store.bucket.read(manifest)[:20])
    world.save(30)
    report = work(world.evaluator())
    assert world.measured == [20, 10, 30]
    assert report.newest is not None and (report.newest.step, report.evaluated) == (30, 2)


def test_silent_bucket_costs_no_checkpoint_its_turn(world: World, monkeypatch) -> None:
    world.save(10, 20)
    follower = world.evaluator()

    with monkeypatch.context() as broken:
        broken.setattr(GlobalStore, "load", silent)
        with pytest.raises(StoreError):
            follower.advance()
    assert work(follower).error == ""
    assert world.measured == [20, 10]


def test_loss_that_is_not_finite_is_a_result_without_a_number(world: World) -> None:
    world.save(10, value=float("nan"))
    report = work(world.evaluator())
    assert report.newest is not None and report.newest.loss is None
    assert EvaluatorStatus.model_validate_json(dump(report)) == report
    assert 'atoll_evaluator_loss{split="heldout"} NaN\n' in metrics(report)


def test_silent_bucket_is_reported_and_tried_again(world: World, monkeypatch) -> None:
    follower, stop = world.evaluator(), threading.Event()
    told: list[str] = []

    def steps() -> None:
        told.append(follower.report().error)
        if len(told) == 2:
            stop.set()
        silent()

    monkeypatch.setattr(world.store, "steps", steps)
    monkeypatch.setattr("atoll_runtime.evaluator.follower.FIRST_WAIT", 0.01)
    follower.follow(stop)
    assert told == ["", "gs://b: no answer within 60 s"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSpec:
    """Short documents, so that most examples hold the ends of some."""
    uri = f"file://{tmp_path_factory.mktemp('data')}/set"
    names = [name for name in (f"document-{number}" for number in range(400)) if held_out(name)]
    text = b"what the islands learned, the syncer merges. "
    write_text(uri, ((name, text[: 7 + 5 * (n % 8)]) for n, name in enumerate(["document-train", *names])))
    return DataSpec(uri=uri, sequence_length=LENGTH, packing="Documents")


@pytest.fixture(scope="module")
def reader(data: DataSpec) -> Reader:
    return Reader(data.uri, "heldout", LENGTH)


@pytest.mark.parametrize("packing", ["Stream", "Documents"])
def test_the_loss_is_the_mean_over_the_targets_that_training_counts(
    reader: Reader, packing, monkeypatch
) -> None:
    """Against each example alone, as a learner's step sees it."""
    monkeypatch.setattr("atoll_runtime.evaluator.measure.TOKENS_AT_ONCE", 4 * LENGTH)
    assert reader.examples > 4
    assert reader.examples % 4, "the last batch is to be filled up"
    theta = initial(MODEL)
    one = jax.jit(objective(MODEL, InnerSpec(precision="float32")).evaluate)
    nats = tokens = 0.0
    for index in range(reader.examples):
        example = reader.example(index)[None]
        batch = {"tokens": example, "weights": np.ones((1, LENGTH), np.float32)}
        count = LENGTH
        if packing == "Documents":
            batch["segments"] = own = segments(example, reader.catalogue.separator)
            count = int((own[:, 1:] == own[:, :-1]).sum())
        nats += count * float(one(theta, batch))
        tokens += count
    found = Measure(MODEL, reader, LENGTH, 10**6, packing)(theta)
    assert found.tokens == tokens
    assert found.nats == pytest.approx(nats / tokens, rel=1e-5)
    assert (tokens < reader.examples * LENGTH) == (packing == "Documents")


def test_no_example_is_counted_twice_and_no_more_tokens_than_asked_for(reader: Reader) -> None:
    theta = initial(MODEL)
    assert Measure(MODEL, reader, LENGTH, 2 * LENGTH + 5)(theta).tokens == 2 * LENGTH
    assert Measure(MODEL, reader, LENGTH, 1)(theta).tokens == LENGTH, "one example at least"


def test_parameters_of_another_model_are_refused_by_name(reader: Reader) -> None:
    theta = initial(MODEL)
    theta["extra"] = theta.pop("final/norm")
    with pytest.raises(WrongTensors, match="extra, final/norm"):
        Measure(MODEL, reader, LENGTH, LENGTH)(theta)


def test_the_trial_measures_its_checkpoints_with_the_packing_of_the_run(
    data: DataSpec, tmp_path: Path
) -> None:
    run = TrainingRunSpec.model_validate(read_manifest(BUILT_IN)["spec"])
    checkpoint = run.checkpoint.model_copy(update={"uri": f"file://{tmp_path}"})
    spec = run.model_copy(update={"data": data, "checkpoint": checkpoint})
    store, theta = GlobalStore(checkpoint.uri), initial(MODEL)
    meta = {"model": MODEL.model_dump(by_alias=True, exclude_none=True)}
    for step in (0, 10):
        store.save(Cut(step, theta, theta, (step,), meta))
        theta = {name: 2 * value for name, value in theta.items()}
    for found, step in zip(evaluate_both(spec, 0), (0, 10), strict=True):
        _, own = evaluate(store.uri, step, data.uri, length=LENGTH, packing="Documents")
        assert (found.step, found.tokens) == (step, own.tokens)
        assert found.loss == pytest.approx(own.nats, rel=1e-5)
