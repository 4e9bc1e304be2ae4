"""Starts workers that compile on several CPU devices, and reads the line of JSON that each prints."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from held_ports import held_ports


@contextlib.contextmanager
def coordinator() -> Iterator[str]:
    """An address on which host 0 of a unit listens, reserved until the context ends."""
    with held_ports(1) as [port]:
        yield f"127.0.0.1:{port}"


def start(
    worker: Path, *arguments: object, devices: int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(worker), *map(str, arguments)],
        env={
            **os.environ,
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_PLATFORMS": "cpu",
            # Threads of XLA. By default there is one for each device, and two collectives of one device at a time may
            # leave another device without a thread for ever (jaxlib 0.10.2).
            "NPROC": str(4 * devices),
            # With these the compiler takes a quarter of the time.
            "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def all_results(processes: Sequence[subprocess.Popen[str]], timeout: float) -> list[Any]:
    """Returns the result of each process in order, and kills those that still run."""
    try:
        return [result(process, timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60)


def result(process: subprocess.Popen[str], timeout: float) -> Any:
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))
