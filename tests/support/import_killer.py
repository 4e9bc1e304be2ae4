"""Imports that are killed at a write, each in a fork of a process that has no thread of JAX's.

The tests' own process may have many, and a fork of it could hang.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from atoll_runtime.checkpoint import Bucket
from atoll_runtime.data.importer import Order, run_import


class Killer:
    """Use as a context manager."""

    def __enter__(self) -> Killer:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def killed_at(self, write: int, half: bool, uri: str, order: Order) -> bool:
        """Imports until the n-th write, and dies in it, before its rename; whether there was such a write.

        Args:
            half: half of the object stands there by then, as other stores than a folder may leave it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump((write, half, uri, order), self._process.stdin)
        self._process.stdin.flush()
        return bool(pickle.load(self._process.stdout))


def _die_at(write: int, half: bool) -> None:
    whole, left = Bucket.write, write

    def cut(self: Bucket, path: str, data: bytes) -> None:
        nonlocal left
        if left == 0:
            if half:
                whole(self, path, data[: len(data) // 2])
            setattr(Path, "replace", _die)  # noqa: B010
        left -= 1
        whole(self, path, data)

    setattr(Bucket, "write", cut)  # noqa: B010


def _die(*_: object) -> None:
    """What was written beside its name stays."""
    os.kill(os.getpid(), signal.SIGKILL)


def _serve() -> None:
    answers: Any = sys.stdout.buffer
    while True:
        try:
            write, half, uri, order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pid = os.fork()
        if pid == 0:
            _die_at(write, half)
            try:
                run_import(uri, order)
            finally:
                os._exit(0)
        pickle.dump(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
