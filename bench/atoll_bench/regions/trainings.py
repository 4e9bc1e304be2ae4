"""Trainings in the regions by either system, with their times, losses, and the traffic of the links."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll_bench.figures import say
from atoll_bench.regions.decoupled import begun, decoupled, train
from atoll_bench.regions.setting import LENGTH, Setting
from atoll_bench.regions.wan import SITE, Bytes, Wan, scale_of
from atoll_bench.run import check
from atoll_local.process import spawn, wait_for
from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import COORDINATOR_PORT, SyncerStatus, dump
from atoll_runtime.data import Reader, write_stdlib
from atoll_runtime.evaluator.measure import Measure

FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
HELD_OUT_TOKENS = 65_536
READY_SECONDS = 300.0
STEP_LIMIT_SECONDS = 60.0
"""A synchronous step that takes longer is broken."""
POLL_SECONDS = 0.2
SEED = 0


def environment(folder: Path) -> dict[str, str]:
    """The environment of every process. Each uses one core at most, and shares compiled programs with later ones."""
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": FLAGS,
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    }


@dataclass(frozen=True)
class Spent:
    """One training of either system over the links."""

    seconds: float
    loss: float
    """Held-out, nats per token."""
    tokens: int
    """Tokens that all regions trained."""
    used: dict[str, float]
    """Of each region's link: mean bits per second in the busier direction."""
    status: SyncerStatus | None = None
    """Atoll's status at the target."""


class Trainings:
    def __init__(self, wan: Wan, folder: Path, steps: int) -> None:
        self._wan, self._folder = wan, folder
        self.setting = Setting(f"file://{folder}/data", steps)
        write_stdlib(self.setting.data)
        self._environment = environment(folder)
        self.scale = 0.0
        self.step_seconds = 0.0

    def synchronous(self, steps: int) -> Spent:
        """Measures steps, gives the links their rates, and trains `steps` steps over them. Raises `CommandError` if a
        process ended or is late."""
        folder = self._folder / "synchronous"
        folder.mkdir()
        setting = replace(self.setting, steps=steps)
        run = setting.run(SEED, f"file://{folder}/bucket", SITE)
        (folder / "run.json").write_text(dump(run))
        places = list(self._wan.places.values())
        program = [sys.executable, "-m", "atoll_bench.regions.synchronous", str(folder)]
        job = [str(len(places)), str(setting.batch), f"{places[0].address}:{COORDINATOR_PORT}"]
        self._wan.free()
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for rank, place in enumerate(places):
                log = folder / f"{place.name}.log"
                command = [*place.inside, *program, str(rank), *job]
                processes[place.name] = spawn(command, log, self._environment)
            ready = _answers(folder, "ready", processes, READY_SECONDS)
            self.step_seconds = float(np.mean([each["step_seconds"] for each in ready]))
            self.scale = scale_of(self.setting.parameters, self.step_seconds)
            self._wan.link(self.scale)
            say(
                f"steps of {1e3 * self.step_seconds:.0f} ms: 1 Gbit/s is "
                f"{1e3 * self.scale:.3g} Mbit/s; {steps} synchronous steps"
            )
            before = self._wan.carried()
            (folder / "go").touch()
            done = _answers(folder, "done", processes, STEP_LIMIT_SECONDS * steps)
            seconds = max(each["seconds"] for each in done)
            used = _used(before, self._wan.carried(), seconds)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        with np.load(folder / "theta.npz") as theta:
            loss = self._loss(dict(theta))
        tokens = len(places) * steps * setting.step_tokens
        return Spent(seconds, loss, tokens, used)

    def decoupled(self, name: str, seed: int, shaped: bool = True) -> Spent:
        """Trains with Atoll, over the same links or over links without limits. Raises `CommandError`."""
        if shaped:
            self._wan.link(self.scale)
        else:
            self._wan.free()
        say(f"Atoll, {name}: {self.setting.steps} steps")
        with decoupled(self._wan, self._folder / name, self.setting, seed, self._environment) as run:
            before, began = self._wan.carried(), time.monotonic()
            *_, status = train(run)
            used = _used(before, self._wan.carried(), time.monotonic() - began)
            run.until("the run is finished", lambda now: now.phase == "Finished")
        cut = GlobalStore(run.contract.checkpoint.uri).load(self.setting.steps, momentum=False)
        tokens = sum(unit.tokens for unit in status.units.values())
        return Spent(status.time - begun(status), self._loss(cut.theta), tokens, used, status)

    def _loss(self, theta: dict[str, np.ndarray]) -> float:
        """Held-out loss, nats per token."""
        run = self.setting.run(SEED, "file:///nowhere", SITE)
        reader = Reader(run.data.uri, "heldout", LENGTH)
        return Measure(run.model, reader, LENGTH, HELD_OUT_TOKENS)(theta).nats


def _used(before: dict[str, Bytes], after: dict[str, Bytes], seconds: float) -> dict[str, float]:
    """Mean bits per second in the busier direction, by region."""
    return {
        name: 8 * max(new - old for old, new in zip(before[name], after[name], strict=True)) / seconds
        for name in before
    }


def _answers(
    folder: Path, name: str, processes: dict[str, subprocess.Popen[bytes]], seconds: float
) -> list[dict[str, Any]]:
    """Waits for what every process writes under this name. Raises `CommandError`, `ClusterError`."""
    files = [folder / f"{name}-{rank}" for rank in range(len(processes))]

    def written() -> bool:
        check(processes, folder)
        return all(file.exists() for file in files)

    wait_for(f"synchronous training: {name}", written, seconds, interval=POLL_SECONDS)
    return [json.loads(file.read_text()) for file in files]
