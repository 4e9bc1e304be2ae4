"""A real syncer, units that learn, and a real evaluator that follows their checkpoints and is killed in between."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compile_cache import kept_programs
from protocol_parties import Program

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import (
    ENV_EVALUATION,
    EXIT_OK,
    EXIT_TERMINAL,
    CheckpointSpec,
    DataSpec,
    EvaluationContract,
    EvaluatorStatus,
    RunContract,
    TargetSpec,
    dump,
    identity,
)
from atoll_runtime.data import write_text
from atoll_runtime.data.writer import held_out
from atoll_runtime.evaluate import evaluate

OWN = identity("default", "walk", "evaluator", "walk-evaluator")
SECONDS = 180.0
"""For a process that imports JAX on a machine that others use too."""


class Evaluator(Program):
    def __init__(self, run: RunContract, told: EvaluationContract, tls: Path, folder: Path) -> None:
        more = {**kept_programs(), "JAX_PLATFORMS": "cpu", ENV_EVALUATION: dump(told)}
        super().__init__(run, folder, tls, (told.status_port, told.health_port), **more)
        self.start()

    def start(self) -> None:
        self.execute("evaluator")

    def status(self, tls: Path | None = None) -> EvaluatorStatus | None:
        told = self.told(tls)
        return None if told is None else EvaluatorStatus.model_validate_json(told)

    def newest(self) -> int | None:
        """Global step of its newest result."""
        status = self.status()
        assert not self.away, self.log.read_text()
        return status.newest.step if status is not None and status.newest is not None else None


@pytest.fixture
def evaluator(tmp_path: Path, free_ports: Any, certificate: Any) -> Iterator[Callable[..., Evaluator]]:
    started: list[Evaluator] = []

    def start(run: RunContract) -> Evaluator:
        status, health = free_ports(2)
        told = EvaluationContract(tokens=2048, status_port=status, health_port=health)
        started.append(Evaluator(run, told, certificate("evaluator"), tmp_path / "evaluator"))
        return started[-1]

    yield start
    for each in started:
        if not each.away:
            each.end(signal.SIGKILL)


@pytest.fixture
def data(tmp_path: Path) -> DataSpec:
    """Documents that are shorter than an example."""
    names = [name for name in (f"document-{number}" for number in range(800)) if held_out(name)]
    text = b"what the islands learned, the syncer merges. "
    write_text(f"file://{tmp_path}/data", ((name, text) for name in ["of-training", *names]))
    return DataSpec(uri=f"file://{tmp_path}/data", sequence_length=32, packing="Documents")


@pytest.mark.timeout(600)
def test_every_checkpoint_of_a_run_is_evaluated_once_whatever_becomes_of_the_evaluator(
    make_run: Any,
    authority: Any,
    syncer: Any,
    learner_process: Any,
    evaluator: Any,
    data: DataSpec,
    eventually: Any,
    tmp_path: Path,
) -> None:
    checkpoint = CheckpointSpec(uri=f"file://{tmp_path}/bucket", interval_steps=20, keep=10)
    run = make_run(data=data, checkpoint=checkpoint, target=TargetSpec(global_steps=60))
    store = GlobalStore(run.checkpoint.uri)
    follows = evaluator(run)
    serving = syncer(run)
    eventually(lambda: follows.newest() == 0, SECONDS)
    first = follows.status()
    assert follows.status(authority("other").issue("unit", OWN)) is None

    follows.end(signal.SIGKILL)
    for name in ("east", "west"):
        learner_process(run, name)
    eventually(lambda: (now := serving.status()) is not None and now.phase == "Finished", SECONDS)
    before = store.bucket.read("evaluations/0.json")
    follows.start()
    final = store.steps()[0]
    assert final == 60
    eventually(lambda: (now := follows.status()) is not None and now.evaluated == len(store.steps()), SECONDS)
    last = follows.status()

    assert store.bucket.read("evaluations/0.json") == before, "it was not evaluated again"
    for report, step in ((first, 0), (last, final)):
        _, own = evaluate(store.uri, step, data.uri, max_tokens=2048, length=32, packing="Documents")
        assert report.newest.step == step
        assert report.newest.loss == pytest.approx(own.nats, rel=1e-6)
        assert report.newest.tokens == own.tokens < 2048
    assert last.newest.loss != first.newest.loss
    assert (last.phase, last.error, last.skipped) == ("Waiting", "", 0)
    assert follows.plain("/readyz").startswith("Waiting")
    assert f"atoll_evaluator_global_step {final}\n" in follows.plain("/metrics")
    assert follows.end(signal.SIGTERM) == EXIT_OK


@pytest.mark.timeout(300)
def test_a_data_set_that_is_not_there_ends_it_with_a_reason(
    make_run: Any, evaluator: Any, tmp_path: Path
) -> None:
    follows = evaluator(make_run(data=DataSpec(uri=f"file://{tmp_path}/nothing", sequence_length=32)))
    assert follows.process.wait(SECONDS) == EXIT_TERMINAL
    assert f"DataInvalid: file://{tmp_path}/nothing: no data set here" in follows.log.read_text()
