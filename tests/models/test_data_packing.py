"""Documents that share an example: which tokens belong together, and what a unit makes of it."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.contract import DataSpec, Dimensions, InnerSpec, ModelSpec, OptimizerSpec, TargetSpec
from atoll_runtime.data import write_text
from atoll_runtime.data.packing import segments
from atoll_runtime.evaluator.measure import Measure
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.island import _data
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import initial
from atoll_runtime.model.objective import objective
from atoll_runtime.process import Terminal
from atoll_runtime.simulate.blank import run_contract, unit_contract

SIZE = Dimensions(layers=1, width=16, heads=2, kv_heads=1, hidden=32)
SPEC = ModelSpec(dimensions=SIZE)
LENGTH = 15


@settings(max_examples=50)
@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=30), min_size=1, max_size=1))
def test_a_separator_ends_its_document_and_the_next_token_begins_another(rows):
    expected, document = [], 1
    for token in rows[0]:
        expected.append(document)
        document += token == 0
    found = segments(np.array(rows, np.int32), 0)
    assert found.tolist() == [expected]
    assert found.dtype == np.int32


@pytest.fixture(scope="module")
def tokens():
    rows = np.random.default_rng(0).integers(1, 256, (4, LENGTH + 1)).astype(np.int32)
    rows[0, [3, 9]] = rows[1, 7] = rows[2, [0, 15]] = 0
    return rows


def test_a_unit_that_keeps_documents_apart_learns_each_from_itself_alone():
    halves = np.random.default_rng(0).integers(1, 256, (8, 8)).astype(np.int32)
    halves[:, -1] = 0
    whole = halves.reshape(4, LENGTH + 1)
    mesh, spec = span(jax.devices()), InnerSpec(precision="float32")
    theta = initial(SPEC)
    apart = Inner(mesh, SPEC, spec, theta, 4, LENGTH, separator=0)
    joined = Inner(mesh, SPEC, spec, theta, 4, LENGTH)
    alone = {"tokens": halves, "weights": np.ones((8, 7), np.float32)}
    nats = float(jax.jit(objective(SPEC, spec).evaluate)(theta, alone))
    assert float(apart.step(whole, 1e-3)) == pytest.approx(nats, rel=1e-5)
    assert float(joined.step(whole, 1e-3)) != pytest.approx(nats, rel=1e-5)


class Pairs:
    """A task as docs/models.md has it: a mean by the batch's weights. A token sees itself alone."""

    def init(self, rng):
        return {"table": jax.random.normal(rng, (256, 256))}

    def loss(self, params, batch, rng):
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        chances = jax.nn.log_softmax(params["table"][inputs])
        nats = -jnp.take_along_axis(chances, targets[..., None], axis=-1)[..., 0]
        return jnp.sum(nats * batch["weights"]) / jnp.sum(batch["weights"])


@pytest.mark.parametrize("parts", [1, 2])
def test_a_task_of_the_users_trains_on_the_loss_that_it_is_evaluated_by_whole_or_in_parts(
    tokens, monkeypatch, parts
):
    module = types.ModuleType("mine")
    module.Pairs = Pairs
    monkeypatch.setitem(sys.modules, "mine", module)
    spec = ModelSpec(task="mine:Pairs")
    inner = InnerSpec(optimizer=OptimizerSpec(name="sgd"), clip_norm=1e6, accumulation=parts)
    first = initial(spec)
    held = types.SimpleNamespace(
        readers=1, examples=4, catalogue=types.SimpleNamespace(separator=0), example=lambda i: tokens[i]
    )
    measure = Measure(spec, held, LENGTH, 4 * LENGTH, "Documents")
    unit = Inner(span(jax.devices()), spec, inner, first, 4, LENGTH, separator=0)
    assert float(unit.step(tokens, 1.0)) == pytest.approx(measure(first).nats, rel=1e-5)

    counts = tokens[:, :-1] != 0
    gradient = first["table"] - np.asarray(unit.theta["table"])
    np.testing.assert_array_equal(gradient[0], 0, "no first token of a document is predicted")
    chance = np.exp(jax.nn.log_softmax(first["table"][tokens[:, :-1]]))
    wanted = np.zeros_like(gradient)
    np.add.at(wanted, tokens[:, :-1], (chance - np.eye(256)[tokens[:, 1:]]) * counts[..., None])
    np.testing.assert_allclose(gradient, wanted / counts.sum(), atol=1e-6)


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    uri = f"file://{tmp_path_factory.mktemp('text')}/set"
    texts = ((f"{number}", f"document {number} ".encode() * (1 + number % 7)) for number in range(80))
    write_text(uri, texts, shard_bytes=1000)
    return uri


def run_of(uri, **changes):
    return run_contract(
        model=changes.pop("model", SPEC),
        data=DataSpec(uri=uri, sequence_length=LENGTH, **changes),
        target=TargetSpec(global_steps=1),
    )


UNIT = unit_contract("u", batch=4, stream=1, streams=2)


def test_a_unit_reads_its_own_stream_of_the_data(uri):
    reader, stream = _data(run_of(uri, packing="Documents", tokenizer="bytes"), UNIT)
    assert (stream.stream, stream.streams, stream.examples) == (1, 2, reader.examples)
    assert reader.catalogue.separator == 0


def test_a_vocabulary_that_the_model_has_not_ends_the_unit_with_both_numbers(uri):
    small = ModelSpec(dimensions=SIZE.model_copy(update={"vocabulary": 100}))
    with pytest.raises(
        Terminal, match=rf"vocabulary: 100 must be 256 or more, .* of {uri} \(tokenizer bytes\)"
    ):
        _data(run_of(uri, model=small), UNIT)


def test_another_tokenizer_than_the_run_names_ends_the_unit(uri):
    with pytest.raises(Terminal, match=r"data.tokenizer: sentencepiece, but .* has bytes"):
        _data(run_of(uri, tokenizer="sentencepiece"), UNIT)
