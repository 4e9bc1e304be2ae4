"""The global model of a checkpoint on held-out text, by the measure of a task of the user's own."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.checkpoint import Cut, GlobalStore, StoreError
from atoll_runtime.contract import ModelSpec
from atoll_runtime.data.writer import held_out, write_text
from atoll_runtime.evaluate import evaluate
from atoll_runtime.model import initial

pytestmark = pytest.mark.timeout(300)  # 10 s alone, most of it the compiler's
LENGTH = 32


class Unigram:
    """The byte that comes next, whatever came before."""

    def init(self, rng):
        return {"logits": jnp.zeros(256)}

    def loss(self, params, batch, rng):
        return jnp.nan  # training has another loss

    def evaluate(self, params, batch):
        return -jnp.mean(jax.nn.log_softmax(params["logits"])[batch["tokens"][:, 1:]])


@pytest.fixture
def data(tmp_path):
    names = [f"document-{number}" for number in range(200)]
    assert any(held_out(name) for name in names)
    path = tmp_path / "text"
    path.write_text("what the islands learned, the syncer merges. " * 12)
    uri = f"file://{tmp_path}/data"
    write_text(uri, [(name, path) for name in names])
    return uri


def saved(folder, model, theta):
    store = GlobalStore(f"file://{folder}/run")
    zeros = {name: np.zeros_like(value) for name, value in theta.items()}
    store.save(Cut(10, theta, zeros, (10,), {"model": model.model_dump(by_alias=True, exclude_none=True)}))
    return store.uri


def test_a_task_is_evaluated_by_its_own_measure(tmp_path, data, monkeypatch):
    module = types.ModuleType("counting")
    module.Unigram = Unigram
    monkeypatch.setitem(sys.modules, "counting", module)
    model = ModelSpec(task="counting:Unigram")
    uri = saved(tmp_path, model, initial(model))
    assert evaluate(uri, None, data, length=LENGTH).loss == pytest.approx(np.log(256), rel=1e-5)
    monkeypatch.delitem(sys.modules, "counting")
    with pytest.raises(StoreError, match=r"step 10: model.task: 'counting:Unigram'.*image"):
        evaluate(uri, None, data, length=LENGTH)
