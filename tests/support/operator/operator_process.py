"""The operator as a real process."""

from __future__ import annotations

import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import yaml


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
        if self.alive:
            self.kill()
        print(self.log.read_text()[-6000:])

    def page(self, path: str, token: str | None = None) -> tuple[int, str]:
        """What it serves to probes, or at /metrics for a token (default: its own); (0, "") while it does not listen."""
        scheme, port = ("https", "METRICS") if path == "/metrics" else ("http", "HEALTH")
        url = f"{scheme}://127.0.0.1:{self.environment[f'ATOLL_{port}_PORT']}{path}"
        if token is None:
            users = yaml.safe_load(Path(self.environment["KUBECONFIG"]).read_text())["users"]
            token = users[0]["user"]["token"]
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(
                request, timeout=5, context=ssl._create_unverified_context()
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def figures(self) -> dict[str, float]:
        """Its metrics: name with labels to value."""
        lines = (line.rsplit(" ", 1) for line in self.page("/metrics")[1].splitlines() if line[:1] != "#")
        return {name: float(value) for name, value in lines}

    def start(self) -> None:
        with self.log.open("ab") as file:
            command = [sys.executable, "-m", "atoll_operator"]
            self.process = subprocess.Popen(command, env=self.environment, stdout=file, stderr=file)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)
