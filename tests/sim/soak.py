"""`python tests/sim/soak.py`: many schedules of the protocol, by seed, on all cores."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from sim_scenario import draw
from sim_world import World

BATCH = 50
TOLD = 5000
"""Schedules between two lines of progress."""
COMMAND = "python tests/sim/soak.py --seed {seed} --count 1 --trace"


@dataclass(frozen=True)
class Outcome:
    """One schedule."""

    seed: int
    events: int
    failure: str
    """Empty if every promise was kept."""

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.failure or 'kept'}\n  {COMMAND.format(seed=self.seed)}"


def prepare() -> None:
    """Prepares this process for schedules: no log, and garbage collection is rare and skips objects that exist."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)  # 6 % less time; `schedule` collects a whole world at its end


def schedule(seed: int) -> Outcome:
    """Runs the schedule of a seed."""
    try:
        return _run(World(draw(seed)), seed)
    finally:
        gc.collect()  # a world has many cycles; collected now, its memory is used by the next one


def _run(world: World, seed: int) -> Outcome:
    try:
        world.run()
        world.close()
    except Exception as error:  # an error of the state machines is a finding too
        return Outcome(seed, world.events, f"{type(error).__name__}: {error}")
    return Outcome(seed, world.events, "")


def batch(first: int, count: int) -> list[Outcome]:
    """Runs the schedules of `count` seeds from `first` on. Returns failures, and one outcome with the sum of events."""
    outcomes = [schedule(seed) for seed in range(first, first + count)]
    kept = sum(outcome.events for outcome in outcomes)
    return [outcome for outcome in outcomes if outcome.failure] + [Outcome(first, kept, "")]


def soak(first: int, count: int, processes: int) -> Iterator[list[Outcome]]:
    """Yields batches of outcomes in the order of seeds."""
    starts = range(first, first + count, BATCH)
    sizes = [min(BATCH, first + count - start) for start in starts]
    # Spawned, not forked, because the caller may have threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), prepare) as pool:
        yield from pool.map(batch, starts, sizes)


def main() -> int:
    """Returns 0 if every schedule kept every promise."""
    parser = argparse.ArgumentParser(prog="python tests/sim/soak.py", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(10**9), help="of the first"
    )
    parser.add_argument("--count", type=int, default=10_000, help="of schedules, with successive seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="tell all that happens in the first schedule")
    options = parser.parse_args()
    if options.trace:
        scenario = draw(options.seed)
        print(scenario)
        World(scenario, print).run()
        return 0
    print(f"{options.count} schedules from seed {options.seed} on", flush=True)
    began, events, failures = time.monotonic(), 0, 0
    for batches, outcomes in enumerate(soak(options.seed, options.count, options.processes), 1):
        for outcome in outcomes:
            events += outcome.events
            if outcome.failure:
                failures += 1
                print(outcome, flush=True)
        if batches * BATCH % TOLD == 0:
            seconds = time.monotonic() - began
            print(f"{batches * BATCH} have run, {failures} failed, {seconds:.0f} s", flush=True)
    seconds = time.monotonic() - began
    print(f"{options.count - failures} kept, {failures} failed, {events} events, {seconds:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
