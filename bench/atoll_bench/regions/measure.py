"""The published experiment at small scale: synchronous training and Atoll over the same links with equal tokens, with
the time, the loss and the traffic of each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from atoll_bench.figures import say
from atoll_bench.regions.decoupled import LENGTH, SEED, SIZE, Setting, begun, decoupled, environment, train
from atoll_bench.regions.wan import REGIONS, SITE, Bytes, Wan, round_trips, scale_of
from atoll_bench.run import check
from atoll_local.process import spawn, wait_for
from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import COORDINATOR_PORT, SyncerStatus, dump
from atoll_runtime.data import Reader, write_stdlib
from atoll_runtime.evaluator.measure import Measure

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
HELD_OUT_TOKENS = 65_536
READY_SECONDS = 300.0
STEP_LIMIT_SECONDS = 60.0
"""A synchronous step that takes longer is broken."""
POLL_SECONDS = 0.2


def measure(steps: int, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Runs the whole experiment and yields what `atoll bench regions --json` prints.

    Args:
        steps: steps of Atoll. Its regions go on until they hear of its end. For equal tokens the synchronous training
            gets as many steps as they make over equal links.
        seeds: seeds of Atoll's runs, over equal links without limits and over the links of the regions.

    Raises:
        CommandError: a process ended, or there is a bridge of another bench.
        ClusterError, HostError: this machine cannot run the experiment.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-regions-") as name, Wan(Path(name) / "wan") as wan:
        trainings = Trainings(wan, Path(name), steps)
        equal = [trainings.decoupled(f"equal-{seed}", seed, shaped=False) for seed in seeds]
        each_step = len(wan.regions) * trainings.setting.step_tokens
        synchronous = trainings.synchronous(round(fmean(each.tokens for each in equal) / each_step))
        runs = [trainings.decoupled(f"atoll-{seed}", seed) for seed in seeds]
        yield _document(trainings, synchronous, runs, equal)


def _document(
    trainings: Trainings, synchronous: Spent, runs: Sequence[Spent], equal: Sequence[Spent]
) -> dict[str, Any]:
    """The measurements, with rates scaled to the large model. Atoll's figures are those of its first run, except for
    the losses."""
    atoll = runs[0]
    status = atoll.status
    assert status is not None
    near, far = round_trips()
    regions = []
    for region in REGIONS:
        unit, ledger = status.units[region.name], status.ledger[region.name]
        regions.append(
            {
                "name": region.name,
                "gbps": region.gbps,
                "scaled_gbps": region.gbps * trainings.scale,
                "rtt_ms": 2e3 * region.delay,
                "used_gbps": atoll.used[region.name] / 1e9 / trainings.scale,
                "used_gbps_synchronous": synchronous.used[region.name] / 1e9 / trainings.scale,
                "member_share": unit.contributions / max(1, status.rounds),
                "merged_share": ledger.merged / max(1, ledger.trained),
                "step_seconds": unit.step_seconds,
                "link": unit.link.model_dump(),
            }
        )
    return {
        "synchronous_s": synchronous.seconds,
        "atoll_s": atoll.seconds,
        "ratio": synchronous.seconds / atoll.seconds,
        "loss_synchronous": synchronous.loss,
        "loss_atoll": fmean(each.loss for each in runs),
        "losses_atoll": [each.loss for each in runs],
        "loss_equal_links": [each.loss for each in equal],
        "steps": trainings.setting.steps,
        "steps_synchronous": synchronous.tokens // (len(REGIONS) * trainings.setting.step_tokens),
        "tokens_synchronous": synchronous.tokens,
        "tokens_atoll": atoll.tokens,
        "tokens_merged_atoll": sum(ledger.merged for ledger in status.ledger.values()) // status.fragments,
        "model": SIZE,
        "parameters": trainings.setting.parameters,
        "step_seconds": trainings.step_seconds,
        "scale": trainings.scale,
        "congestion_control": CONGESTION_CONTROL.read_text().strip(),
        "rtt_between_regions_ms": [1e3 * near, 1e3 * far],
        "regions": regions,
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
