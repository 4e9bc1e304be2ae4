"""Every preset: the size of its name, what the decoder makes of it, and its cut into fragments. No array is made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import PRESETS, InnerSpec, MeshSpec, ModelSpec
from atoll_runtime.model import describe, fits, resolve
from atoll_runtime.model.objective import objective
from atoll_runtime.protocol.fragments import build_layout

NAMES = [pytest.param(name, id=name) for name in PRESETS]
FRAGMENTS = 24
"""P of the paper, and the default."""
LARGE = [name for name in PRESETS if resolve(ModelSpec(preset=name)).width >= 1024]


def tensors(preset):
    return {info.name: info.shape for info in describe(ModelSpec(preset=preset))}


@pytest.mark.parametrize("preset", NAMES)
def test_every_preset_has_the_size_of_its_name(preset):
    name = preset.removeprefix("moe-")
    named = {"k": 1e3, "m": 1e6, "b": 1e9}[name[-1]] * float(name[:-1])
    assert sum(int(np.prod(shape)) for shape in tensors(preset).values()) == pytest.approx(named, rel=0.15)


@pytest.mark.parametrize("preset", ["1m", "12b", "moe-12b"])
def test_the_step_of_a_preset_has_a_gradient_for_every_tensor(preset):
    spec = ModelSpec(preset=preset)
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in tensors(preset).items()}
    batch = {
        "tokens": jax.ShapeDtypeStruct((2, 129), jnp.int32),
        "segments": jax.ShapeDtypeStruct((2, 129), jnp.int32),
        "weights": jax.ShapeDtypeStruct((2, 128), jnp.float32),
    }
    loss = objective(spec, InnerSpec(precision="bf16")).loss
    value, gradient = jax.eval_shape(
        jax.value_and_grad(lambda t, b: loss(t, b, jax.random.key(0))), shapes, batch
    )
    assert value.shape == ()
    assert {name: (each.shape, each.dtype) for name, each in gradient.items()} == {
        name: (each.shape, jnp.float32) for name, each in shapes.items()
    }


@pytest.mark.parametrize("preset", NAMES)
def test_the_fragments_of_every_preset_are_as_even_as_its_largest_piece_allows(preset):
    layout = build_layout(describe(ModelSpec(preset=preset)), FRAGMENTS)
    largest = max(fragment.size for fragment in layout.fragments)
    piece = max(piece.size for fragment in layout.fragments for piece in fragment.pieces)
    assert largest <= 4 / 3 * max(layout.size / FRAGMENTS, piece)


@pytest.mark.parametrize("preset", LARGE)
def test_a_large_preset_suits_a_tpu_and_can_be_split_over_four_chips(preset):
    size = resolve(ModelSpec(preset=preset))
    assert size.width % 256 == size.hidden % 256 == size.expert_hidden % 128 == 0
    assert size.width // size.heads == 128
    fits(size, MeshSpec(tensor=4, expert=4 if size.experts else 1))
