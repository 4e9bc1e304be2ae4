"""Atoll in the regions: the training, the same for both systems, and its run with the syncer at its site and a learner
process in each region."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll_bench.parity.sizes import SIZES
from atoll_bench.regions.wan import SITE, Wan
from atoll_bench.run import POLL_SECONDS, Run
from atoll_cli.errors import CommandError
from atoll_runtime.contract import (
    ENV_UNIT,
    CheckpointSpec,
    DataSpec,
    InnerSpec,
    LinkReport,
    ModelSpec,
    OuterSpec,
    RunContract,
    SyncerAddress,
    SyncerStatus,
    TargetSpec,
    dump,
)
from atoll_runtime.model import describe
from atoll_runtime.simulate.blank import run_contract, unit_contract

SIZE = "250k"
"""A size of `atoll bench parity`: the largest one with steps that take little of two cores."""
LENGTH, BATCH = 64, 24
"""Tokens of a sequence, and sequences of a region's step. With these a step takes several times as long as Atoll's
other work, as a step of seconds does."""
WARMUP_STEPS = 20
SEED = 0
FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
SILENCE_SECONDS = 60.0
"""A run is broken if its clock stands still for this many seconds."""


@dataclass(frozen=True)
class Setting:
    """One training without its seed."""

    data: str
    """URI."""
    steps: int
    interval: int = OuterSpec().interval
    model: ModelSpec = SIZES[SIZE].model
    batch: int = BATCH

    @property
    def step_tokens(self) -> int:
        """Tokens of one region's step."""
        return self.batch * LENGTH

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in describe(self.model))

    def run(self, seed: int, bucket: str, host: str) -> RunContract:
        """The contract of a run with its syncer at `host`."""
        return run_contract(
            model=self.model.model_copy(update={"seed": seed}),
            data=DataSpec(uri=self.data, sequence_length=LENGTH, seed=seed),
            inner=InnerSpec(learning_rate=SIZES[SIZE].rates[1], warmup_steps=WARMUP_STEPS),
            outer=OuterSpec(interval=self.interval, fragments=min(self.interval, OuterSpec().fragments)),
            target=TargetSpec(global_steps=self.steps),
            checkpoint=CheckpointSpec(uri=bucket, interval_steps=self.steps + 1),
            shards=(SyncerAddress(host=host),),
        )


def environment(folder: Path) -> dict[str, str]:
    """The environment of every process. Each uses one core at most, and shares compiled programs with later ones."""
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": FLAGS,
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    }


@contextmanager
def decoupled(
    wan: Wan, folder: Path, setting: Setting, seed: int, environment: Mapping[str, str]
) -> Iterator[Run]:
    """Starts a run. Its processes end with the context. Every learner has made its first step, which means that it has
    compiled its programs. Raises `CommandError` if a process ended, or did not start in time."""
    units = [region.name for region in wan.regions]
    contract = setting.run(seed, f"file://{folder}/bucket/run", SITE)
    with closing(Run(contract, folder, units, wan.site.address)) as run:
        run.start_syncer(wan.site.inside, environment)
        for stream, name in enumerate(units):
            unit = unit_contract(name, batch=setting.batch, stream=stream, streams=len(units))
            run.start(name, "learner", wan.places[name].inside, {**environment, ENV_UNIT: dump(unit)})
        run.until("every learner steps", lambda status: len(_first_steps(status)) == len(units))
        yield run


def train(run: Run) -> Iterator[SyncerStatus]:
    """Yields each status until the run's target. The last one has the last link that each unit told while it was
    connected: some have left by then. Raises `CommandError` if a process ended, or the clock stands still."""
    step, since = -1, time.monotonic()
    links: dict[str, LinkReport] = {}
    while True:
        status = run.look()
        if status is not None:
            links |= {name: unit.link for name, unit in status.units.items() if unit.hosts}
            if status.phase in ("Finishing", "Finished"):
                told = {
                    name: unit.model_copy(update={"link": links.get(name, unit.link)})
                    for name, unit in status.units.items()
                }
                yield status.model_copy(update={"units": told})
                return
            yield status
            if status.global_step > step:
                step, since = status.global_step, time.monotonic()
        if time.monotonic() > since + SILENCE_SECONDS:
            said = "it does not answer" if status is None else status.message
            raise CommandError(f"the clock stands at {step} for {SILENCE_SECONDS:g} s: {said}")
        time.sleep(POLL_SECONDS)


def begun(status: SyncerStatus) -> float:
    """Unix seconds at which the earliest first step ended."""
    return min(_first_steps(status))


def _first_steps(status: SyncerStatus) -> list[float]:
    return [unit.beginning.stepped for unit in status.units.values() if unit.beginning is not None]
