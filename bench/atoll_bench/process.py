"""`python -m atoll_operator` as a process of the bench."""

from __future__ import annotations

import asyncio
import math
import signal
import ssl
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from atoll_cli.errors import CommandError
from atoll_local.controlplane import free_port
from atoll_local.errors import ClusterError
from atoll_local.process import Daemon

READY_SECONDS = 60.0
END_SECONDS = 20.0


class Operator:
    """`python -m atoll_operator`, with leader election as in the chart."""

    def __init__(self, environment: Mapping[str, str], token: str, process: Daemon) -> None:
        """`token`: of an account that may read the metrics."""
        health, metrics = free_port(), free_port()
        self._health = f"http://127.0.0.1:{health}/readyz"
        self._metrics = urllib.request.Request(
            f"https://127.0.0.1:{metrics}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        ports = {"ATOLL_HEALTH_PORT": str(health), "ATOLL_METRICS_PORT": str(metrics)}
        self._environment, self._process = {**environment, **ports}, process
        self.started = 0.0
        """Monotonic seconds at which the process was started."""

    def start(self) -> None:
        self.started = time.monotonic()
        self._process.start([sys.executable, "-m", "atoll_operator"], self._environment)

    async def until_ready(self) -> None:
        """Waits until it is ready. Raises `CommandError` after a minute."""
        try:
            await asyncio.to_thread(self._process.await_answer, self._health, READY_SECONDS)
        except ClusterError as error:
            raise CommandError(f"the operator did not start: {error}") from error

    @property
    def pid(self) -> int:
        pid = self._process.pid()
        if pid is None:
            raise CommandError(f"the operator has ended: {self.tail()}")
        return pid

    def memory(self) -> tuple[int, int]:
        """Resident bytes: now, and the peak."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        now, most = (int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
        return now, most

    def longest_plan(self) -> float:
        """Returns seconds that no plan has exceeded: the bound of a bucket of the histogram."""
        unchecked = ssl._create_unverified_context()  # its certificate is self-signed
        with urllib.request.urlopen(self._metrics, timeout=10, context=unchecked) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        plans = next(each.samples for each in families if each.name == "atoll_plan_seconds")
        counts: dict[str, dict[float, float]] = {}
        for each in plans:
            if each.name.endswith("_bucket"):
                counts.setdefault(each.labels["kind"], {})[float(each.labels["le"])] = each.value
        return max(
            min(bound for bound, count in kind.items() if count == kind[math.inf]) for kind in counts.values()
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it with this signal, or with SIGKILL after 20 s."""
        self._process.stop(number, END_SECONDS)

    def tail(self) -> str:
        return self._process.tail()
