"""Orbax behind one door: named numpy arrays to and from a folder in the bucket.

The synchronous v0 `Checkpointer`, because v1 must be called from the main thread and the syncer saves
from a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax writes a dozen lines for each save and load

Tree = Mapping[str, Mapping[str, np.ndarray]]


def write(uri: str, tree: Tree) -> None:
    """Saves groups of arrays at `uri`, over whatever an earlier attempt left there."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            _path(uri), args=ocp.args.PyTreeSave({k: dict(v) for k, v in tree.items()}), force=True
        )


def read(uri: str, group: str, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Restores one group of arrays, as numpy, on this process alone."""
    names = list(names)
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_alone())
    with ocp.Checkpointer(handler, multiprocessing_options=_alone()) as checkpointer:
        restored = checkpointer.restore(
            _path(uri),
            args=ocp.args.PyTreeRestore(
                item={group: dict.fromkeys(names, 0)},
                restore_args={group: {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}},
                partial_restore=True,
            ),
        )
    return {name: np.asarray(restored[group][name]) for name in names}


def _path(uri: str) -> epath.Path:
    return epath.Path(uri.removeprefix("file://"))


def _alone() -> ocp.options.MultiprocessingOptions:
    """Each host of a unit reads by itself: no barrier with the unit's other processes."""
    host = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=host, active_processes={host}, barrier_sync_key_prefix=f"host{host}"
    )
