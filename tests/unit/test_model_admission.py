"""Every wrong task ends the process that reads the contract first, with a message that says what would be right."""

import asyncio
import sys
import types
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from atoll_cli.errors import UsageError
from atoll_cli.simulate.runfile import read_run
from atoll_runtime import process
from atoll_runtime.contract import (
    ENV_RUN_FILE,
    EXIT_TERMINAL,
    DataSpec,
    ModelSpec,
    OuterSpec,
    TargetSpec,
    dump,
)
from atoll_runtime.evaluator.measure import Measure
from atoll_runtime.learner import island
from atoll_runtime.model import ModelError, check, describe
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.blank import run_contract, unit_contract
from atoll_runtime.syncer import __main__ as syncer
from atoll_runtime.syncer.status import Status

SPEC, LENGTH = ModelSpec(task="mine:Task"), 16
SAMPLE = Path(__file__).resolve().parents[2] / "manifests" / "samples" / "flax-task.yaml"
RUN = run_contract(
    model=SPEC,
    data=DataSpec(uri="gs://b/d", sequence_length=LENGTH),
    outer=OuterSpec(fragments=1, interval=4),
    target=TargetSpec(global_steps=1),
)
UNIT = unit_contract(batch=8, streams=2)


@pytest.fixture
def task(monkeypatch):
    """A task that is importable as `mine:Task`. A test changes it to a wrong one."""

    class Task:
        axes = {"w": ("any", "width")}  # noqa: RUF012

        def init(self, rng):
            return {"w": jax.random.normal(rng, (3, 8))}

        def loss(self, params, batch, rng):
            return jnp.sum(params["w"]) * jnp.mean(batch["weights"])

    module = types.ModuleType("mine")
    module.Task = Task
    monkeypatch.setitem(sys.modules, "mine", module)
    return Task


def refused(spec=SPEC, **data):
    """The error for the syncer, which reads the contract first."""
    with pytest.raises(ModelError) as caught:
        describe(spec)
        check(spec, LENGTH, **{"packing": "Stream"} | data)
    return str(caught.value)


INIT = "init(rng) must return a tree of floating arrays"
AXES = "axes must be a mapping of flat names"
LOSS = "loss(params, batch, rng) must return a scalar"
EVALUATE = "evaluate(params, batch) must return a floating scalar"


def raising(*_):
    raise OSError("no\n\n such file")


def giving(value):
    """A method that returns this value."""
    return lambda self, *_: value


ONE = np.ones(1, np.float32)
WRONG_TASKS = {
    "no-init": ("init", None, "no method 'init', but None", INIT),
    "init-raises": ("init", raising, "init: OSError: no such file; ", INIT),
    "init-empty": ("init", giving({}), "init makes no parameters", ""),
    "init-unfiltered": (
        "init",
        lambda _, rng: eqx.nn.MLP(8, 1, 4, 1, key=rng),
        "init: TypeError: ",
        "eqx.filter(",
    ),
    "init-integer": (
        "init",
        giving({"step": np.int32(0)}),
        "parameter 'step' is int32",
        "it must be floating",
    ),
    "init-no-elements": (
        "init",
        giving({"b": ONE[:0]}),
        "'b' has the shape (0,), and so no elements",
        "leave it out",
    ),
    "init-twice": ("init", giving({"a": {"b": ONE}, "a/b": ONE}), "two parameters are named 'a/b'", ""),
    "axes-method": ("axes", lambda self: {}, "is no mapping", AXES),
    "axes-raise": ("axes", property(raising), "axes: OSError: no such file", AXES),
    "axes-name": ("axes", {"v": ("any",)}, "axes of 'v'", "there are w"),
    "axes-count": ("axes", {"w": ("width",)}, "shape (3, 8): one for each", "of any, batch"),
    "axes-unknown": ("axes", {"w": ("width", "breadth")}, "'breadth'", "of any, batch"),
    "axes-number": ("axes", {"w": 3}, "axes of 'w': 3", "one for each dimension"),
    "no-loss": ("loss", None, "no method 'loss', but None", LOSS),
    "loss-raises": ("loss", raising, "loss: OSError: no such file; ", LOSS),
    "loss-vector": ("loss", giving(ONE), "loss: TypeError: it returned float32 of the shape (1,)", LOSS),
    "loss-integer": ("loss", giving(np.int32(0)), "loss: TypeError: it returned int32 of the shape ()", LOSS),
    "loss-aux": ("loss", giving((ONE[0], {})), "loss: TypeError: it returned a tuple", LOSS),
    "loss-no-gradient": (
        "loss",
        lambda self, params, *_: jax.lax.while_loop(lambda x: x < 9, jnp.exp, jnp.sum(params["w"])),
        "loss: ValueError: Reverse-mode",
        "has a gradient",
    ),
    "evaluate-number": ("evaluate", 3, "no method 'evaluate', but 3", EVALUATE),
    "evaluate-other": (
        "evaluate",
        giving({"loss": 1.0}),
        "evaluate: TypeError: it returned a dict",
        EVALUATE,
    ),
}


@pytest.mark.parametrize(("attribute", "value", "words", "right"), WRONG_TASKS.values(), ids=WRONG_TASKS)
def test_a_task_that_is_wrong_is_refused_by_name_with_what_would_be_right(
    task, monkeypatch, attribute, value, words, right
):
    monkeypatch.setattr(task, attribute, value, raising=False)
    message = refused()
    assert message.startswith("model.task: 'mine:Task'")
    assert words in message and right in message


BROKEN = {
    "absent": (None, "import: ModuleNotFoundError: ", "must be in the run's image"),
    "misspelt": ("Tusk = 1", "import: AttributeError: ", "must be in the run's image"),
    "raises": ("\n1 / 0", "ZeroDivisionError: division by zero (broken.py, line 2)", "imported"),
    "exits": ("raise SystemExit(0)", "import: SystemExit: 0", "imported without"),
    "arguments": (
        "class Task:\n    def __init__(self, width): ...",
        "construction: TypeError: ",
        "called without arguments",
    ),
    "makes-nothing": ("def Task(): pass", "no method 'init'", INIT),
}


@pytest.mark.parametrize(("source", "words", "right"), BROKEN.values(), ids=BROKEN)
def test_a_task_that_cannot_be_made_is_refused_with_the_place(tmp_path, monkeypatch, source, words, right):
    if source is not None:
        (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    message = refused(ModelSpec(task="broken:Task"))
    sys.modules.pop("broken", None)
    assert message.startswith("model.task: 'broken:Task'")
    assert words in message and right in message


def test_the_loss_is_tried_on_the_batch_that_will_come(task, monkeypatch):
    """A table of positions fits only one length. A batch has `segments` only if the data are packed."""

    def loss(self, params, batch, rng):
        assert batch["tokens"].shape[1:] == (LENGTH + 1,) and ("segments" in batch) == self.packed
        return jnp.sum(params["w"]) * jnp.mean(batch["weights"])

    monkeypatch.setattr(task, "loss", loss)
    monkeypatch.setattr(task, "packed", False, raising=False)
    check(SPEC, LENGTH, "Stream")
    assert "loss: AssertionError" in refused(packing="Documents")
    monkeypatch.setattr(task, "packed", True)
    check(SPEC, LENGTH, "Documents")


def test_evaluator_checks_the_evaluation_alone(task, monkeypatch):
    monkeypatch.setattr(task, "loss", raising)
    monkeypatch.setattr(task, "evaluate", lambda self, params, batch: jnp.sum(params["w"]), raising=False)
    check(SPEC, 2 * LENGTH, "Stream", trained=False)
    monkeypatch.setattr(task, "evaluate", None)
    with pytest.raises(ModelError, match="loss: OSError"):
        Measure(SPEC, None, LENGTH, LENGTH)


WRONG = pytest.mark.parametrize("attribute", ["init", "loss"])


@WRONG
def test_a_syncer_ends_for_good_and_leaves_the_reason(task, monkeypatch, tmp_path, attribute):
    monkeypatch.setattr(task, attribute, raising)
    (tmp_path / "run.json").write_text(dump(RUN))
    (tmp_path / "log").touch()
    monkeypatch.setenv(ENV_RUN_FILE, str(tmp_path / "run.json"))
    monkeypatch.setattr(process, "TERMINATION_LOG", str(tmp_path / "log"))
    assert syncer.main() == EXIT_TERMINAL
    assert (tmp_path / "log").read_text().startswith(f"ModelInvalid: model.task: 'mine:Task': {attribute}: ")


def test_a_syncer_whose_task_can_be_traced_and_not_computed_ends_for_good_too(task, monkeypatch, tmp_path):
    def absent():
        return np.load(tmp_path / "weights.npy")

    def init(self, rng):
        return {"w": jax.pure_callback(absent, jax.ShapeDtypeStruct((3, 8), jnp.float32))}

    monkeypatch.setattr(task, "init", init)
    run = RUN.model_copy(
        update={"checkpoint": RUN.checkpoint.model_copy(update={"uri": f"file://{tmp_path}/b"})}
    )
    layout, status = build_layout(describe(run.model), run.outer.fragments), Status(run, 0)
    with pytest.raises(syncer.Terminal, match=r"model\.task: 'mine:Task': init: ") as caught:
        asyncio.run(syncer.recovered(run, layout, Rules.of(run), tmp_path / "journal", status))
    assert caught.value.reason == "ModelInvalid"
    assert "FileNotFoundError: [Errno 2] No such file or directory: " in str(caught.value)
    assert len(str(caught.value)) < 1000, "a pod's last words are 4096 bytes"


@WRONG
def test_a_learner_ends_for_good(task, monkeypatch, attribute):
    monkeypatch.setattr(task, attribute, raising)
    monkeypatch.setattr(island, "_data", lambda run, unit: (None, None))
    monkeypatch.setattr(island, "join", lambda unit, shape: None)
    with pytest.raises(Terminal, match=f"model.task: 'mine:Task': {attribute}: ") as caught:
        island.train(RUN, UNIT, None, lambda: None)
    assert caught.value.reason == "ModelInvalid"


@WRONG
def test_a_run_file_is_refused_where_it_is_planned(task, monkeypatch, tmp_path, attribute):
    monkeypatch.setattr(task, attribute, raising)
    run = yaml.safe_load(SAMPLE.read_text())
    run["spec"]["model"]["task"] = SPEC.task
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    with pytest.raises(UsageError, match=rf"run.yaml: spec\.model\.task: 'mine:Task': {attribute}: OSError"):
        read_run(tmp_path / "run.yaml")


def test_a_run_file_with_a_task_is_refused_where_there_is_no_jax(monkeypatch):
    monkeypatch.delattr("atoll_runtime.model.admission", raising=False)
    monkeypatch.setitem(sys.modules, "atoll_runtime.model.admission", None)
    assert "model.task: 'mine:Task' needs JAX" in refused()
