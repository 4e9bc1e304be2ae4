"""Operators without the second of imports: a process that has imported everything forks one for each order.

Each is a process of its own that runs `atoll_operator.__main__.main`, as `python -m atoll_operator` does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

EXIT_SECONDS = 20
"""For a process that was killed to be gone."""
STUCK_SECONDS = 0.0
"""After its deletion time a pod is stuck: 30 s, at each write of a story, would be the longest part of it."""


class Forks:
    """The process that forks; close it when the last operator is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, environment: dict[str, str], log: Path) -> int:
        """The process id of a new operator."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        log.touch()
        with self._lock:
            print(json.dumps({"environment": environment, "log": str(log)}), file=stdin, flush=True)
            return int(stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=EXIT_SECONDS)


class ForkedOperator:
    """One operator, started again in the same environment after each kill."""

    def __init__(self, forks: Forks, environment: dict[str, str], log: Path) -> None:
        self.environment = environment
        self.log = log
        self._forks = forks
        self._handle = -1

    @property
    def alive(self) -> bool:
        return self._handle >= 0 and not select.select([self._handle], [], [], 0)[0]

    def start(self) -> None:
        """A new process; the last one must have been killed."""
        assert self._handle < 0
        self._handle = os.pidfd_open(self._forks.start(self.environment, self.log))

    def shoot(self) -> None:
        """SIGKILL, without waiting; from any thread."""
        signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if self.alive:
            self.shoot()
        gone, _, _ = select.select([self._handle], [], [], EXIT_SECONDS)
        assert gone, f"a killed operator is still there after {EXIT_SECONDS} s"
        os.close(self._handle)
        self._handle = -1


def _serve() -> None:
    """Forks until its standard input ends. The kernel takes the dead away."""
    from kubernetes.config import kube_config

    from atoll_operator.__main__ import main  # here alone: the test's own process needs none of it
    from atoll_operator.plan import removal

    removal.STUCK_SECONDS = STUCK_SECONDS
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(order["environment"])
        kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ["KUBECONFIG"]  # read when it was imported
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(file, number)
        status = main()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
