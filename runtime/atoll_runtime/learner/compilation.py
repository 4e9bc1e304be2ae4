"""Compiles a unit's programs once; later incarnations load them.

JAX's own cache does not serve a unit of several hosts on CPUs (JAX 0.10): its keys differ by process, and process 0
alone writes, so host 0 loads what the others compile. Gloo waits only 30 s for the members of a new group, so a host
that is ahead by one compilation fails. Here the hosts decide together for each program: all load it or all compile it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.stages import Compiled, Lowered

from atoll_runtime.learner.agree import Agreement
from atoll_runtime.learner.compilation_store import CompilationStore

Wrap = Callable[[str, Any], Callable[..., Any]]
"""Takes a name and a function of `jax.jit`; returns the function to call instead. Keyword arguments must be static."""

log = logging.getLogger(__name__)


def uncached(name: str, jitted: Any) -> Any:
    """Lets JAX compile the function at its first call."""
    return jitted


class Programs:
    """Wraps the functions of one incarnation. All hosts must call them in the same order.

    Args:
        store: if None, every program is compiled.
    """

    def __init__(self, agreement: Agreement, store: CompilationStore | None) -> None:
        self._agreement, self._store = agreement, store
        self.loaded = 0
        self.compiled = 0
        self.seconds = 0.0
        """Total time between the first call of each program and its start."""

    def __call__(self, name: str, jitted: Any) -> Callable[..., Any]:
        """See `Wrap`. Makes one program for each signature that the function is called with."""
        variants: dict[Any, Compiled] = {}

        def call(*arguments: Any, **static: Any) -> Any:
            leaves, tree = jax.tree.flatten(arguments)
            signature = tree, tuple(map(_kind, leaves)), tuple(sorted(static.items()))
            if signature not in variants:
                variants[signature] = self._obtain(name, jitted, arguments, static)
            return variants[signature](*arguments)

        return call

    def settle(self) -> None:
        """Call after the first step: the loaded programs work."""
        log.info("%d programs loaded, %d compiled in %.1f s", self.loaded, self.compiled, self.seconds)
        if self._store is not None:
            self._store.settle()

    def _obtain(
        self, name: str, jitted: Any, arguments: Sequence[Any], static: Mapping[str, Any]
    ) -> Compiled:
        begun = time.perf_counter()
        lowered: Lowered = jitted.lower(*arguments, **static)
        text = lowered.as_text()
        key = f"{name}-{_digest(text)}"
        found = self._load(key, lowered)
        low, _ = self._agreement.extremes(np.array([found is not None] * 2, np.int32))
        if found is not None and low[0]:
            self.loaded += 1
            program = found
        else:
            self.compiled += 1
            program = lowered.compile()
            # A callback's address is valid only in this process.
            if self._store is not None and "callback" not in text:
                self._store.put(key, lambda: serialize_executable.serialize(program)[0])
        self.seconds += time.perf_counter() - begun
        return program

    def _load(self, key: str, lowered: Lowered) -> Compiled | None:
        """Returns None, without an error, for a program that must be compiled."""
        content = None if self._store is None else self._store.get(key)
        if content is None:
            return None
        try:
            found: Compiled = serialize_executable.deserialize_and_load(
                content, lowered.in_tree, lowered.out_tree
            )
            return found
        except Exception as error:  # any kind: another format, another machine
            log.warning("%s is compiled again: %s: %s", key, type(error).__name__, error)
            return None


def _kind(leaf: Any) -> Any:
    """The properties of an argument that its program depends on."""
    return leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)


def _digest(text: str) -> str:
    """Digest of the program and this process's place among the devices. The store's folder names everything else that
    the compiler's result depends on."""
    client = jax.devices()[0].client
    devices = [(device.id, device.process_index, device.device_kind) for device in jax.devices()]
    parts = [client.platform, client.platform_version, repr(devices), str(jax.process_index()), text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
