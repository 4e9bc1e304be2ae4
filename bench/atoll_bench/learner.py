"""Compares inner steps per second of an island that exchanges with a plain loop of the same model.

One process runs both loops in turns, in phases of equal steps (plain, island, island, plain, …). A loop is idle while
the other one runs. The syncer is another process, on a core of its own if there are two. A phase of the island ends
when its threads (transfers, saves) are idle, and their CPU seconds after its last step are added to the phase.
Therefore the island's phases contain the whole cost of the exchange.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll_bench import cores
from atoll_bench.figures import Phase, Rates, in_turns, timed
from atoll_bench.island import Island, Plain, batches, check_device
from atoll_bench.run import SYNCER, Run
from atoll_cli.errors import CommandError
from atoll_local.controlplane import free_port
from atoll_runtime.contract import (
    CheckpointSpec,
    DataSpec,
    ModelSpec,
    RunContract,
    SyncerAddress,
    SyncerStatus,
    TargetSpec,
)
from atoll_runtime.data import write_stdlib
from atoll_runtime.learner.loop import DATA_TIMEOUT
from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.simulate.blank import run_contract, unit_contract
from atoll_runtime.transport.tls import Tls

UNIT = "unit"
WARM_STEPS = 200
"""Every program must be compiled within this many steps more than those until the first cut."""
REST_SECONDS = 0.25
REST = 0.05
"""A process is idle if it uses no more than this share of a core over REST_SECONDS."""
REST_TIMEOUT = 15.0
"""Less than the 30 s after which a unit counts as silent."""


@dataclass(frozen=True)
class LearnerFigure(Rates):
    """One line of `atoll bench learner --json`."""

    cores: int
    """2 if learner and syncer have one each, 1 if they share one."""
    preset: str
    parameters: int
    batch: int
    length: int
    merges: int
    cuts: int
    """Completed saves of the unit's moments."""


def measure(
    preset: str, batch: int, length: int, checkpoint_interval: int, pairs: int, seconds: float
) -> Iterator[LearnerFigure]:
    """Trains with the defaults of a run for P, H and τ. Raises `CommandError` if the measurement failed.

    Args:
        checkpoint_interval: global steps between two cuts.
        seconds: of a phase of the plain loop, about.
    """
    usable = cores.usable()
    # Before JAX counts them. Threads and processes that are started inherit it.
    os.sched_setaffinity(0, usable[:1])
    try:
        check_device()
        with tempfile.TemporaryDirectory(prefix="atoll-bench-") as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            contract = _contract(folder, preset, length, checkpoint_interval)
            run = stack.enter_context(contextlib.closing(Run(contract, folder, [UNIT], "localhost")))
            os.sched_setaffinity(0, usable[1:2] or usable)
            run.start_syncer((), {})
            os.sched_setaffinity(0, usable[:1])
            loops = stack.enter_context(contextlib.closing(_Loops(run, batch)))
            loops.warm()
            steps = max(2, round(seconds * 4 / loops.plain(4).seconds))
            loops.rest()
            rounds, saved = loops.status().rounds, loops.island.saver.saved
            found = in_turns(pairs, steps, loops.plain, loops.exchanging)
            status = loops.status()
            if status.rounds == rounds:
                raise CommandError(f"nothing was merged: {status.message}")
            yield LearnerFigure(
                **vars(found),
                cores=min(2, len(usable)),
                preset=preset,
                parameters=loops.parameters,
                batch=batch,
                length=length,
                merges=status.rounds - rounds,
                cuts=loops.island.saver.saved - saved,
            )
    except OSError as error:
        raise CommandError(str(error)) from error
    finally:
        os.sched_setaffinity(0, usable)


class _Loops:
    """Both loops, and the syncer of this run."""

    def __init__(self, run: Run, batch: int) -> None:
        self.run, contract = run, run.contract
        unit = unit_contract(UNIT, batch=batch)
        self.island = Island(contract, unit, Tls(run.folder / UNIT))
        self._batches = batches(contract, batch)
        self._plain = Plain(
            contract.model,
            contract.inner,
            self.island.theta,
            lambda _: self._batches.take(DATA_TIMEOUT).tokens,
            lambda step: learning_rate(
                contract.inner, contract.target.global_steps, step, step, healed=False
            ),
        )
        self.parameters = sum(value.size for value in self.island.theta.values())

    def close(self) -> None:
        self._batches.close()
        self.island.close()

    def status(self) -> SyncerStatus:
        return self.run.until("the syncer answers", lambda _: True)

    def warm(self) -> None:
        """Compiles all programs."""
        self._plain.advance(2)
        limit = WARM_STEPS + self.run.contract.checkpoint.interval_steps
        while not self.island.warm:
            if self.island.loop.step >= limit:
                raise CommandError(f"not every fragment was merged and saved within {limit} steps")
            self.island.advance(4)

    def plain(self, steps: int) -> Phase:
        return timed(self._plain.advance, steps)

    def exchanging(self, steps: int) -> Phase:
        """A phase of the island, and what its threads do after its last step."""
        phase, stepped = timed(self.island.advance, steps), time.process_time()
        self.rest()
        rest = time.process_time() - stepped
        return Phase(phase.seconds + rest, phase.core_seconds + rest)

    def rest(self) -> None:
        """Waits until both processes are idle."""
        deadline, now = time.monotonic() + REST_TIMEOUT, self._used()
        while time.monotonic() < deadline:
            time.sleep(REST_SECONDS)
            last, now = now, self._used()
            if max(one - other for one, other in zip(now, last, strict=True)) <= REST * REST_SECONDS:
                return
        raise CommandError(f"learner and syncer were not idle within {REST_TIMEOUT:g} s")

    def _used(self) -> tuple[float, float]:
        """CPU seconds of both processes."""
        return time.process_time(), cores.used(self.run.processes[SYNCER].pid)


def _contract(folder: Path, preset: str, length: int, checkpoint_interval: int) -> RunContract:
    """A run of one unit, trained on the text of the standard library."""
    data = f"file://{folder}/data"
    write_stdlib(data)
    port, status, health, transfer = (free_port() for _ in range(4))
    address = SyncerAddress(
        host="localhost", port=port, status_port=status, health_port=health, transfer_port=transfer
    )
    return run_contract(
        model=ModelSpec(preset=preset),
        data=DataSpec(uri=data, sequence_length=length),
        target=TargetSpec(global_steps=1_000_000),
        checkpoint=CheckpointSpec(uri=f"file://{folder}/bucket/run", interval_steps=checkpoint_interval),
        shards=(address,),
    )
