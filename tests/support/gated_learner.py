"""A learner that makes its steps by the rounds, not by the clock, as a process: RUN.JSON TLS UNIT INCARNATION [LAST].

What it contributes depends on the syncer's decisions alone, however fast the machine is. It holds every fragment
before its first step, makes `FIRST_STEPS` until it is asked, answers the round of step t after its own step t, and
makes that step once it has taken the merge before. Asked for a round beyond LAST, it kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
from protocol_parties import NumpyUnit

from atoll_runtime.contract import parse_run
from atoll_runtime.simulate.fleet.learner import FIRST_STEPS, TOKENS
from atoll_runtime.transport.codecs import DTYPES
from atoll_runtime.transport.grpc_client import GrpcNetwork
from atoll_runtime.transport.tls import Tls

PACE = 0.05
"""Seconds that a step is said to take."""
WELCOME_SECONDS = 120.0
"""The syncer may still be starting."""


class GatedUnit(NumpyUnit):
    """`last`: of the rounds that it answers; None for one that stays."""

    last: int | None = None

    def _train(self) -> None:
        greeting = self.client.welcome(WELCOME_SECONDS)
        assert greeting is not None, "no answer of the syncer"
        base, newest, unreported = None, 0, 0
        while not (self._halt.is_set() or self.client.stop() or self.client.error()):
            for p, arrival in self.client.arrived().items():
                self.progress.adopt(p, arrival.version)
                self.client.adopt(p, arrival)
                newest = max(newest, arrival.version)
            if self.progress.see(cut := self.client.cut()):
                self.client.mark(cut, self.progress.trained)
            pulls = self.client.pulls()
            asked = max((ask.round.step for ask in pulls.values()), default=0)
            if self.last is not None and newest >= self.last and asked > self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            if pulls and base is None:
                first = min(ask.round.step for ask in pulls.values())
                base, newest = first - self.step, first - 1
            for p, ask in pulls.items():
                offer = self.progress.offer(p, ask)
                if offer is not None and self.step + base >= ask.round.step:
                    delta = np.zeros_like(self.theta[p], DTYPES[self.run.outer.codec])
                    self.client.contribute(p, ask, delta, offer, self.step)
            held = all(
                have >= want for have, want in zip(self.progress.versions, greeting.versions, strict=True)
            )
            if held and (self.step < FIRST_STEPS if base is None else self.step + base <= newest):
                self.step += 1
                self.progress.step(self.tokens)
                unreported += self.tokens
            if self.step > 1:  # said again while it waits: reports in quick succession are sent as one
                self.client.report(self.step, unreported, 0.0, PACE, self.step)
                unreported = 0
            self._halt.wait(PACE / 5)


def main(file: str, folder: str, name: str, incarnation: str, last: str = "") -> int:
    run, tls = parse_run(Path(file).read_bytes()), Tls.read(folder)
    networks = [GrpcNetwork(shard.host, shard.port, tls) for shard in run.shards]
    unit = GatedUnit(run, name, networks, int(incarnation), tokens=TOKENS)
    unit.last = int(last) if last else None
    unit.hold_nothing()
    unit.start()
    while unit.running:
        unit._thread.join(1.0)
    return 0 if unit.client.stop() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
