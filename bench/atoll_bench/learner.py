"""Compares inner steps per second of an island that exchanges with a plain loop of the same model.

One process runs both loops in turns, in phases of equal steps (plain, island, island, plain, …). A loop is idle while
the other one runs. The syncer is another process, on a core of its own if there are two. A phase of the island ends
when its threads (transfers, saves) are idle, and their CPU seconds after its last step are added to the phase.
Therefore the island's phases contain the whole cost of the exchange.

With `gbps` the syncer is in a network namespace behind a shaped link. The link carries bodies while the plain loop runs
too, so it is scaled to the seconds from one of the island's steps to the next, including those of the plain loop. The
island reaches the syncer through proxies on localhost, because that name is in the syncer's certificate.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from atoll_bench import cores
from atoll_bench.island import Island, Plain, batches
from atoll_bench.rates import Phase, Rates, in_turns, timed
from atoll_bench.regions.wan import Region, Wan, scale_of
from atoll_bench.run import SYNCER, Run, Start, local, unit_of
from atoll_bench.slowlink import SlowLink
from atoll_cli.errors import CommandError
from atoll_local.controlplane import free_port
from atoll_local.namespaces import check_namespaces
from atoll_runtime.contract import (
    CheckpointSpec,
    DataSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    RunContract,
    SyncerAddress,
    SyncerStatus,
    TargetSpec,
)
from atoll_runtime.data import write_stdlib
from atoll_runtime.learner.loop import DATA_TIMEOUT
from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.transport.tls import Tls

UNIT, PLACE = "unit", "far"
MTU = 9000
"""Bytes of a frame on a shaped link: large, so that its relay takes little of the measured cores."""
WARM_STEPS = 200
"""Every program must be compiled within this many steps more than those until the first cut."""
REST_SECONDS = 0.25
REST = 0.05
"""A process is idle if it uses no more than this share of a core over REST_SECONDS."""
REST_TIMEOUT = 15.0
"""Less than the 30 s after which a unit counts as silent."""


@dataclass(frozen=True)
class Setting:
    """What is trained, and for how long; P, H and τ are a run's defaults."""

    preset: str
    batch: int
    length: int
    """Tokens of a sequence."""
    checkpoint_interval: int
    """Global steps between two cuts."""
    pairs: int
    seconds: float
    """Approximate seconds of a phase of the plain loop."""
    gbps: float | None = None
    """Rate of the link to the syncer for a model of 12 billion parameters with steps of 5 s; None: loopback."""
    delay: float = 0.0
    """Milliseconds that this link adds, one way."""


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
    gbps: float | None
    codec: str
    """The unit's codec at the end."""
    load: float
    """Share of an interval that the unit's transfers took, as it measured them."""


def measure(**options: Any) -> Iterator[LearnerFigure]:
    """`options` are the fields of a `Setting`. Raises `CommandError` if the measurement failed."""
    setting, before = Setting(**options), cores.usable()
    cores.pin(os.getpid(), before[:1])  # before JAX counts them
    try:
        if len(jax.devices()) != 1:
            raise CommandError(f"the plain loop is one device's; {len(jax.devices())} are visible")
        with tempfile.TemporaryDirectory(prefix="atoll-bench-") as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            contract, address = _contract(folder, setting), "localhost"
            wan: Wan | None = None
            start: Start = local
            if setting.gbps is not None:
                check_namespaces()
                place = Region(PLACE, setting.gbps, setting.delay / 1000)
                wan = stack.enter_context(Wan(folder / "wan", (place,), MTU))
                start, address = wan.places[PLACE].run, wan.places[PLACE].address
            run = stack.enter_context(contextlib.closing(Run(contract, folder, [UNIT], address)))
            run.start_syncer(start, {})
            cores.pin(run.processes[SYNCER].pid, before[1:2] or before)
            if wan is not None:
                contract = _proxied(contract, address, stack)
            with contextlib.closing(_Bench(setting, run, contract, wan)) as bench:
                yield bench.figure(min(2, len(before)))
    except OSError as error:
        raise CommandError(str(error)) from error
    finally:
        cores.pin(os.getpid(), before)


class _Bench:
    """Both loops, and the syncer at the ports of `contract`."""

    def __init__(self, setting: Setting, run: Run, contract: RunContract, wan: Wan | None) -> None:
        self.setting, self.run, self.wan = setting, run, wan
        unit = unit_of(UNIT, setting.batch)
        self.island = Island(contract, unit, Tls.read(run.folder / UNIT))
        self._batches = batches(contract, unit)
        self.plain = Plain(
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

    def figure(self, used_cores: int) -> LearnerFigure:
        steps = self._warm()
        self._rest()
        if self.wan is not None:
            self._limit(self.wan, steps)
        before, saved = self._status().rounds, self.island.saver.saved
        found = in_turns(self.setting.pairs, steps, self._plain, self._island)
        status = self._status()
        if status.rounds == before:
            raise CommandError(f"nothing was merged: {status.message}")
        return LearnerFigure(
            **vars(found),
            cores=used_cores,
            preset=self.setting.preset,
            parameters=self.parameters,
            batch=self.setting.batch,
            length=self.setting.length,
            merges=status.rounds - before,
            cuts=self.island.saver.saved - saved,
            gbps=self.setting.gbps,
            codec=status.units[UNIT].link.codec,
            load=status.units[UNIT].link.load,
        )

    def _status(self) -> SyncerStatus:
        return self.run.until("the syncer answers", lambda _: True)

    def _warm(self) -> int:
        """Compiles all programs. Returns the number of steps of a phase."""
        self.plain.advance(2)
        limit = WARM_STEPS + self.setting.checkpoint_interval
        while not self.island.warm:
            if self.island.loop.step >= limit:
                raise CommandError(f"not every fragment was merged and saved within {limit} steps")
            self.island.advance(4)
        return max(2, round(self.setting.seconds * 4 / self._plain(4).seconds))

    def _limit(self, wan: Wan, steps: int) -> None:
        """Gives the link its rate, and runs for two intervals so that the island measures it."""
        began = time.monotonic()
        self._plain(steps)
        self._island(steps)
        wan.link(scale_of(self.parameters, (time.monotonic() - began) / steps))
        for _ in range(-(-2 * self.run.contract.outer.interval // steps)):
            self._plain(steps)
            self._island(steps)

    def _plain(self, steps: int) -> Phase:
        return timed(self.plain.advance, steps)

    def _island(self, steps: int) -> Phase:
        phase, stepped = timed(self.island.advance, steps), time.process_time()
        self._rest()
        rest = time.process_time() - stepped
        return Phase(phase.seconds + rest, phase.core_seconds + rest)

    def _rest(self) -> None:
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


def _proxied(contract: RunContract, address: str, stack: contextlib.ExitStack) -> RunContract:
    """Returns the contract with the ports of proxies on localhost, which forward to the syncer at `address`."""
    (shard,) = contract.shards
    ports = {
        name: stack.enter_context(SlowLink(address, getattr(shard, name))).port
        for name in ("port", "transfer_port")
    }
    return contract.model_copy(update={"shards": (shard.model_copy(update=ports),)})


def _contract(folder: Path, setting: Setting) -> RunContract:
    """A run of one unit, trained on the text of the standard library."""
    data = f"file://{folder}/data"
    write_stdlib(data)
    port, status, health, transfer = (free_port() for _ in range(4))
    address = SyncerAddress(
        host="localhost", port=port, status_port=status, health_port=health, transfer_port=transfer
    )
    return RunContract(
        name="bench",
        namespace="default",
        uid="bench",
        model=ModelSpec(preset=setting.preset),
        data=DataSpec(uri=data, sequence_length=setting.length),
        inner=InnerSpec(),
        outer=OuterSpec(),
        quorum=QuorumSpec(),
        target=TargetSpec(global_steps=1_000_000),
        checkpoint=CheckpointSpec(
            uri=f"file://{folder}/bucket/run", interval_steps=setting.checkpoint_interval
        ),
        shards=(address,),
    )
