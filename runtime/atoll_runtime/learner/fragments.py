"""Moves fragments off the mesh as encoded flat outer gradients, and onto it as flat parts.

Both are split evenly over the devices. No host ever holds more of a fragment than its own devices' contiguous part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atoll_runtime.learner.compilation import Wrap, uncached
from atoll_runtime.learner.mesh import local_range
from atoll_runtime.model.axes import over_devices
from atoll_runtime.protocol.fragments import BLOCK, Fragment, Layout, Piece, part_bounds
from atoll_runtime.transport.blocks import LEVELS, TINY

Programs = dict[int, Callable[[Array, Array], Array]]
"""Compiled encoders, by size of the part."""


class Fragments:
    """The anchors (what this unit last received), and the moves of fragments, which may be empty. Float32."""

    def __init__(
        self, mesh: Mesh, layout: Layout, theta: dict[str, Array], programs: Wrap = uncached
    ) -> None:
        """Takes the seeded θ as the anchors. `programs` wraps the functions to compile."""
        devices = mesh.devices.size
        first, last = local_range(mesh)
        self._layout = layout
        local = jax.sharding.Mesh(np.array(list(mesh.devices.flat)[first:last]), ("parts",))
        self._local = NamedSharding(local, PartitionSpec("parts"))
        """Sharding of this host's parts alone."""
        self._sharding = over_devices(mesh)
        splits = [part_bounds(fragment.size, devices) for fragment in layout.fragments]
        self.padded = [split[-1][1] for split in splits]
        """Length of each fragment, filled up to whole blocks of each device."""
        self.bounds = [(split[first][0], split[last - 1][1]) for split in splits]
        """This host's [start, stop) of each padded fragment."""
        self.encoders = Encoders([stop - start for start, stop in self.bounds], self._local)
        flatten = jax.jit(_flatten, static_argnames=("kinds", "padded"), out_shardings=self._sharding)
        self._flatten = programs("flatten", flatten)
        self._apply = {
            names: programs(
                "apply",
                jax.jit(
                    _apply,
                    static_argnames=("kinds",),
                    donate_argnums=0,
                    # The step's shardings. With others, programs would be compiled again for each set of tensors.
                    out_shardings=({name: theta[name].sharding for name in names}, self._sharding),
                ),
            )
            for names in {_names(fragment) for fragment in layout.fragments}
        }
        self._anchors = [self._flat(theta, number) for number in range(len(layout.fragments))]
        self._sent: dict[int, Array] = {}
        """θ of a fragment when its newest contribution was taken; kept until a version of it arrives."""

    @property
    def anchors(self) -> Sequence[Array]:
        """What this unit last received of each fragment, flat and float32."""
        return self._anchors

    def extract(self, theta: dict[str, Array], number: int, codec: str) -> Array:
        """Δ = anchor − θ of this host's part of one fragment, packed as in `transport/codecs.py`. Starts to copy it to
        the host."""
        sent = self._sent[number] = self._flat(theta, number)
        return _copying(self.encoders.encode(self._here(self._anchors[number]), self._here(sent), codec))

    def _here(self, flat: Array) -> Array:
        """This host's part of a flat array, without a copy."""
        parts = sorted(flat.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        size = sum(part.data.size for part in parts)
        return jax.make_array_from_single_device_arrays((size,), self._local, [part.data for part in parts])

    def capture(
        self, moments: tuple[Mapping[str, Array], Mapping[str, Array]], number: int
    ) -> tuple[Array, Array, Array]:
        """Anchor and the optimiser's moments of one fragment (zero if it has none), flat. Starts to copy them to the
        host."""
        mu, nu = moments
        return (
            _copying(self._anchors[number]),
            _copying(self._flat(mu, number)),
            _copying(self._flat(nu, number)),
        )

    def receive(self, theta: dict[str, Array], number: int, part: np.ndarray) -> dict[str, Array]:
        """Replaces one fragment of θ by the version that arrived, which becomes the anchor. Keeps the steps made since
        the fragment's newest contribution was taken, because no version has them yet.

        The tensors that the fragment touches are donated, so use the returned ones. `part`: this host's part of it.
        """
        fragment = self._layout.fragments[number]
        names = _names(fragment)
        now = self._flat(theta, number)
        touched, self._anchors[number] = self._apply[names](
            {name: theta[name] for name in names},
            jax.make_array_from_process_local_data(self._sharding, part, (self.padded[number],)),
            now,
            self._sent.pop(number, now),
            _indices(fragment),
            kinds=_kinds(fragment),
        )
        return {**theta, **touched}

    def _flat(self, tensors: Mapping[str, Array], number: int) -> Array:
        """One fragment of `tensors`, or zeros if there are none."""
        fragment = self._layout.fragments[number]
        if not tensors or not fragment.pieces:
            zeros: Array = self._flatten({}, [], kinds=(), padded=self.padded[number])
            return zeros
        own = {name: tensors[name] for name in _names(fragment)}
        flat: Array = self._flatten(
            own, _indices(fragment), kinds=_kinds(fragment), padded=self.padded[number]
        )
        return flat


class Encoders:
    """Programs that run on this host alone and need no agreement with the unit's other hosts.

    Args:
        sizes: elements of this host's part of each fragment.
        sharding: that of these parts.
    """

    def __init__(self, sizes: Collection[int], sharding: NamedSharding) -> None:
        self._sizes, self._sharding = sorted(set(sizes)), sharding
        self._encode = jax.jit(_encode, static_argnames=("codec",), out_shardings=sharding)
        self._compiler = ThreadPoolExecutor(1, "encoders")
        self._programs: dict[str, Future[Programs]] = {}
        self._codec = ""

    def choose(self, codec: str) -> str:
        """The codec to use now: this one once its programs are compiled, the last one until then. Another thread
        compiles while training continues. Waits only for the first codec. Raises what the compiler raised."""
        programs = self._compiled(codec)
        if programs.done() or not self._codec:
            programs.result()
            self._codec = codec
        return self._codec

    def encode(self, anchor: Array, flat: Array, codec: str) -> Array:
        """anchor − flat, the same bits as `transport/codecs.py` gives. Waits for the compiler if `choose` did not
        return this codec."""
        return self._compiled(codec).result()[anchor.size](anchor, flat)

    def _compiled(self, codec: str) -> Future[Programs]:
        if codec not in self._programs:
            self._programs[codec] = self._compiler.submit(self._compile, codec)
        return self._programs[codec]

    def _compile(self, codec: str) -> Programs:
        parts = {
            size: jax.ShapeDtypeStruct((size,), jnp.float32, sharding=self._sharding) for size in self._sizes
        }
        return {size: self._encode.lower(part, part, codec=codec).compile() for size, part in parts.items()}


def _copying(array: Array) -> Array:
    """Starts to copy the array to the host, and returns it."""
    for shard in array.addressable_shards:
        shard.data.copy_to_host_async()
    return array


def _names(fragment: Fragment) -> tuple[str, ...]:
    """The tensors that the fragment has pieces of."""
    return tuple(sorted({piece.tensor for piece in fragment.pieces}))


def _kinds(fragment: Fragment) -> tuple[Piece, ...]:
    """The fragment's pieces without their indices, so that fragments of the same kinds share one compilation."""
    return tuple(replace(piece, index=None if piece.index is None else 0) for piece in fragment.pieces)


def _indices(fragment: Fragment) -> list[Any]:
    """The indices of the fragment's pieces, as arguments of a compiled program."""
    return [None if piece.index is None else np.int32(piece.index) for piece in fragment.pieces]


def _extent(piece: Piece) -> tuple[int, tuple[int, ...]]:
    """The axis along which layers or bands of a tensor are stacked, and the shape of one with that axis."""
    if piece.bands > 1:
        return 0, piece.shape
    return (0, (1, *piece.shape)) if piece.axis is None else (piece.axis, piece.shape)


def _taken(values: Array, piece: Piece, index: Any) -> Array:
    """The piece's elements of a tensor. Its layer is taken first, because a slice along an axis that is split over
    devices gathers what it is cut from."""
    axis, shape = _extent(piece)
    if piece.bands > 1:
        values = jax.lax.dynamic_index_in_dim(values, index // piece.bands, keepdims=False)
        index = index % piece.bands
    part: Array = jax.lax.dynamic_slice_in_dim(values, index * shape[axis], shape[axis], axis)
    return part


def _placed(old: Array, values: Array, piece: Piece, index: Any) -> Array:
    """The tensor with the piece's elements replaced."""
    axis, shape = _extent(piece)
    at, whole = index // piece.bands, old
    if piece.bands > 1:
        old, index = jax.lax.dynamic_index_in_dim(whole, at, keepdims=False), index % piece.bands
    new: Array = jax.lax.dynamic_update_slice_in_dim(old, values.reshape(shape), index * shape[axis], axis)
    return new if piece.bands == 1 else jax.lax.dynamic_update_index_in_dim(whole, new, at, 0)


def _flatten(
    tensors: Mapping[str, Array], indices: Sequence[Any], *, kinds: tuple[Piece, ...], padded: int
) -> Array:
    if not kinds:
        return jnp.zeros(padded, jnp.float32)
    flats = []
    for piece, index in zip(kinds, indices, strict=True):
        values = tensors[piece.tensor]
        if index is not None:
            values = _taken(values, piece, index)
        flats.append(values.reshape(-1))
    flat = jnp.concatenate(flats)
    return jnp.pad(flat, (0, padded - flat.size))


def _apply(
    theta: dict[str, Array],
    flat: Array,
    now: Array,
    sent: Array,
    indices: Sequence[Any],
    *,
    kinds: tuple[Piece, ...],
) -> tuple[dict[str, Array], Array]:
    anchor = flat.astype(jnp.float32)
    kept = now - sent
    # Weights that are not finite would stay so, because the syncer refuses contributions of them.
    local = anchor + jnp.where(jnp.isfinite(kept), kept, 0.0)
    offset = 0
    for piece, index in zip(kinds, indices, strict=True):
        values = local[offset : offset + piece.size]
        offset += piece.size
        old = theta[piece.tensor]
        if index is None:
            theta[piece.tensor] = values.reshape(old.shape)
        else:
            theta[piece.tensor] = _placed(old, values, piece, index)
    return theta, anchor


def _encode(anchor: Array, flat: Array, *, codec: str) -> Array:
    delta = anchor - flat
    if codec not in LEVELS:
        return delta.astype(jnp.float32 if codec == "float32" else jnp.bfloat16)
    most = LEVELS[codec]
    table = delta.reshape(-1, BLOCK)
    scale = (jnp.abs(table).max(axis=1) * np.float32(1 / most)).astype(jnp.bfloat16)
    divisor = scale.astype(jnp.float32)
    divisor = jnp.where(jnp.isfinite(divisor) & (divisor >= TINY), divisor, jnp.inf)
    steps = jnp.nan_to_num(jnp.rint(table / divisor[:, None]))
    levels = jnp.clip(steps, -most, most).astype(jnp.int8).astype(jnp.uint8)
    if codec == "int4":
        levels = (levels[:, 0::2] & 0xF) | (levels[:, 1::2] << 4)
    return jnp.concatenate([jax.lax.bitcast_convert_type(scale, jnp.uint8), levels], axis=1).reshape(-1)
