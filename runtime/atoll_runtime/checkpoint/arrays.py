"""Orbax behind one door: named numpy arrays to and from a folder in the bucket, in a bounded time.

The synchronous v0 `Checkpointer`, because v1 must be called from the main thread and the syncer saves
from a worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from atoll_runtime.checkpoint.bucket import patience

logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax writes a dozen lines for each save and load

TIMEOUT = 120.0
"""Seconds for one call, besides those that its bytes take. A small save takes one on an idle machine."""
MOST_LATE = 2
"""Calls that did not come back in time and still run, each with its arrays: no other is begun beside so many."""

Tree = Mapping[str, Mapping[str, np.ndarray]]
T = TypeVar("T")

_late: list[threading.Thread] = []
_lock = threading.Lock()


def write(uri: str, tree: Tree) -> None:
    """Saves groups of arrays at `uri`, over whatever an earlier attempt left there.

    Raises:
        TimeoutError: it did not end in time, and may go on writing there.
    """
    size = sum(value.nbytes for group in tree.values() for value in group.values())
    _in_time(patience(size, TIMEOUT), lambda: _write(uri, tree))


def read(uri: str, group: str, names: Iterable[str], size: int) -> dict[str, np.ndarray]:
    """Restores some arrays of a group, `size` bytes, as numpy, on this process alone.

    Raises:
        TimeoutError: it did not end in time.
    """
    wanted = list(names)
    return _in_time(patience(size, TIMEOUT), lambda: _read(uri, group, wanted))


def late() -> int:
    """Calls that were given up and still run."""
    with _lock:
        _late[:] = [thread for thread in _late if thread.is_alive()]
        return len(_late)


def _in_time(seconds: float, call: Callable[[], T]) -> T:
    """In a thread, for Orbax takes no time-out of its own and cannot be interrupted."""
    earlier = late()
    if earlier >= MOST_LATE:
        raise TimeoutError(f"{earlier} earlier calls have not come back")
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="orbax", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        with _lock:
            _late.append(thread)
        raise TimeoutError(f"no answer within {round(seconds, 1):g} s")
    return result.result()


def _write(uri: str, tree: Tree) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            _path(uri), args=ocp.args.PyTreeSave({k: dict(v) for k, v in tree.items()}), force=True
        )


def _read(uri: str, group: str, names: list[str]) -> dict[str, np.ndarray]:
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
