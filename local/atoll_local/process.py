"""Daemons with pid files, and waiting with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from atoll_local.errors import ClusterError, HostError

LAST_LINES = 4
"""Last lines of a failed command's output that the error shows."""


class Startable(ABC):
    """A context manager that starts and stops something. If the start fails, it is stopped immediately."""

    @abstractmethod
    def start(self) -> None:
        """Starts it."""

    @abstractmethod
    def stop(self) -> None:
        """Stops all parts that run."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_for(
    what: str, ready: Callable[[], bool], timeout: float, hint: str = "", interval: float = 0.1
) -> None:
    """Waits until `ready()` is true. Raises `ClusterError` if it did not become ready within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} was not ready after {timeout:.0f} s{'; ' + hint if hint else ''}")
        time.sleep(interval)


def run(
    command: Sequence[str | Path],
    timeout: float,
    *,
    raises: type[Exception] = HostError,
    name: str = "",
    check: bool = True,
    stdin: str | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output.

    Args:
        raises: the error if it takes longer than `timeout` seconds or, with `check`, fails (with its last lines).
        name: the command's name in messages. The default is its first two words.
        environment: in addition to that of this process.
    """
    words = [str(word) for word in command]
    name = name or " ".join(words[:2])
    try:
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise raises(f"{name} took longer than {timeout:.0f} s") from error
    if check and done.returncode != 0:
        tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-LAST_LINES:]
        raise raises(f"{name} failed: {' / '.join(tail)}")
    return done.stdout


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process whose output is appended to `log`, in its own session: Ctrl-C reaches only the caller.
    `environment` is in addition to that of this process."""
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def start_time(pid: int) -> str:
    """The kernel's start time of a process, which tells a reused pid from the original; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after_name = stat.rsplit(")", 1)[1].split()
    # A killed process whose first thread is a zombie keeps its sockets until the last thread has ended.
    ended = after_name[0] == "Z" and int(after_name[17]) <= 1
    return "" if ended else after_name[19]


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Daemons started by this process that have not ended."""


@dataclass(slots=True)
class Daemon:
    """A process in its own session. A file has its identity, so that another process can end it."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def record(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Starts `command` detached; its output goes to `log`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        process = spawn(command, self.log, environment)
        _children[process.pid] = process
        self.record.write_text(json.dumps({"pid": process.pid, "start": start_time(process.pid)}))
        return process.pid

    def await_answer(self, url: str, seconds: float, context: ssl.SSLContext | None = None) -> None:
        """Waits until `url` answers with status 200. Raises `ClusterError`, which has or names the log, if the process
        ended, or did not answer within `seconds`."""

        def answered() -> bool:
            if self.pid() is None:
                raise ClusterError(f"{self.name} ended at once: {self.tail(2)}")
            try:
                with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_for(self.name, answered, seconds, f"see {self.log}")

    def pid(self) -> int | None:
        """The live process that this record names, or None."""
        try:
            entry = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return None
        alive = start_time(entry["pid"])
        return entry["pid"] if alive and alive == entry["start"] else None

    def stop(self, first: signal.Signals = signal.SIGTERM, grace: float = 3.0) -> None:
        """Ends it by `first`, then by SIGKILL after `grace` seconds. Does nothing if it has ended."""
        for number, seconds in ((first, grace), (signal.SIGKILL, 5.0)):
            if (pid := self.pid()) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                deadline = time.monotonic() + seconds
                while self.pid() is not None and time.monotonic() < deadline:
                    time.sleep(0.02)
        self.record.unlink(missing_ok=True)
        for pid, process in list(_children.items()):  # collects ended daemons, so that none stays a zombie
            if process.poll() is not None:
                del _children[pid]

    def tail(self, lines: int = 5) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
