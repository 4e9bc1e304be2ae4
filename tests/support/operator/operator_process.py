"""The operator as a real process."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self


class Operator:
    """`python -m atoll_operator` with the rights of the chart's service account."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.environment = environment
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it, and show the end of its log."""
        if self.alive:
            self.kill()
        print(self.log.read_text()[-6000:])

    def page(self, path: str) -> tuple[int, str]:
        """What it serves to probes and Prometheus; (0, "") while it does not listen."""
        url = f"http://127.0.0.1:{self.environment['ATOLL_HEALTH_PORT']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def figures(self) -> dict[str, float]:
        """Its metrics, name with labels to value."""
        lines = (line.rsplit(" ", 1) for line in self.page("/metrics")[1].splitlines() if line[:1] != "#")
        return {name: float(value) for name, value in lines}

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "atoll_operator"], env=self.environment, stdout=file, stderr=file
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)
