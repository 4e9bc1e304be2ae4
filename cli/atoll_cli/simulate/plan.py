"""`atoll simulate plan RUN.yaml`: what to expect of a TrainingRun, and which of its knobs would do better."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll_cli import values
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import add_output_options, deliver
from atoll_cli.text import amount

if TYPE_CHECKING:
    from atoll_operator.api.sections import SyncerSpec
    from atoll_runtime.simulate.planner.run import Assumptions, Run

MOST_GBPS = 1e6
LEAST_MTBI = 60.0
"""Seconds. A chip that is interrupted more often than it can be replaced trains nothing."""


def add_options(question: argparse.ArgumentParser) -> None:
    """Adds what only this question takes."""
    question.add_argument("file", type=Path, metavar="RUN.yaml", help="a TrainingRun")
    question.add_argument(
        "--price", action="append", default=[], metavar="GEN=DOLLARS", help="of a chip-hour: v6e=2.70"
    )
    question.add_argument(
        "--step-time", action="append", default=[], metavar="[POOL=]TIME", help="of an inner step, measured"
    )
    question.add_argument(
        "--mtbi",
        action="append",
        default=[],
        metavar="[POOL=]TIME",
        help="between interruptions of a chip (1y)",
    )
    question.add_argument("--mfu", metavar="SHARE", help="of the chips' peak that a step reaches (0.4)")
    question.add_argument("--link-gbps", metavar="G", help="what a unit's link carries each way")
    question.add_argument(
        "--seed-gbps", metavar="G", help="at which a healing unit gets its state (checkpoint 32, peer 200)"
    )
    question.add_argument(
        "--repair", metavar="TIME", help="until a lost slice stands again; 0: at once (10m)"
    )
    question.add_argument("--seed", default="0", metavar="N", help="of the random numbers (0)")
    add_output_options(question)


def run(options: argparse.Namespace) -> int:
    """Raises `UsageError`: a file or an option that cannot be used."""
    from atoll_cli.simulate.planview import report
    from atoll_cli.simulate.runfile import planned_run, read_spec
    from atoll_runtime.simulate.planner.choices import choose

    name, spec = read_spec(options.file)
    planned = planned_run(options.file, name, spec)
    assumed = assumptions(options, planned)
    prices = prices_of(options.price, planned)
    told = any("=" not in text for text in options.mtbi)  # of every pool
    spot = {
        pool.name for pool in spec.pools if pool.capacity == "Spot" and not told
    } - assumed.pool_mtbi.keys()
    found = report(
        planned, assumed, prices, choose(planned, assumed), sorted(spot), too_small(spec.syncer, planned)
    )
    deliver(found, options)
    return 0


def assumptions(options: argparse.Namespace, planned: Run) -> Assumptions:
    """What the options say; what they do not say is the planner's default."""
    from atoll_runtime.simulate.planner.run import Assumptions

    given: dict[str, Any] = {}
    if options.mfu is not None:
        given["mfu"] = values.number("--mfu", options.mfu, most=1, above=True)
    if options.link_gbps is not None:
        given["link_gbps"] = values.number("--link-gbps", options.link_gbps, most=MOST_GBPS, above=True)
    if options.seed_gbps is not None:
        given["seed_gbps"] = values.number("--seed-gbps", options.seed_gbps, most=MOST_GBPS, above=True)
    if options.repair is not None:
        given["repair_seconds"] = 0.0 if options.repair == "0" else values.seconds("--repair", options.repair)
    every, steps = by_pool("--step-time", options.step_time, planned)
    if every is not None:
        steps = {pool.name: every for pool in planned.pools} | steps
    every, mtbi = by_pool("--mtbi", options.mtbi, planned, least=LEAST_MTBI)
    if every is not None:
        given["mtbi"] = every
    seed = values.count("--seed", options.seed, least=0, most=2**32 - 1)
    return Assumptions(step_seconds=steps, pool_mtbi=mtbi, seed=seed, **given)


def too_small(syncer: SyncerSpec, planned: Run) -> list[str]:
    """What the spec gives a shard less of than it needs."""
    from atoll_cli.simulate.admission import quantity
    from atoll_runtime.simulate.planner.syncer import syncer_need

    need = syncer_need(planned)
    given = {
        "storage": (syncer.storage, need.volume),
        "resources.limits.memory": (syncer.resources.limits.get("memory"), need.memory),
        "resources.requests.memory": (syncer.resources.requests.get("memory"), need.memory),
    }
    return [
        f"spec.syncer.{field}: {value}, and a shard comes to {amount(least, 'B')}: give it that much, or more shards"
        for field, (value, least) in given.items()
        if value is not None and quantity(str(value)) < least
    ]


def by_pool(
    option: str, texts: Sequence[str], planned: Run, least: float = 0.0
) -> tuple[float | None, dict[str, float]]:
    """Seconds from `TIME`, for every pool, and from `POOL=TIME`; the last of each counts."""
    every, own = None, {}
    for text in texts:
        pool, equals, time = text.rpartition("=")
        value = values.seconds(option, time)
        if value < least:
            raise UsageError(f"{option} {text!r}: {least:g}s or more is wanted")
        if equals:
            own[values.choice(option, pool, [pool.name for pool in planned.pools])] = value
        else:
            every = value
    return every, own


def prices_of(texts: Sequence[str], planned: Run) -> dict[str, float] | None:
    """Dollars a chip-hour by generation; None without `--price`.

    Raises:
        UsageError: a generation that is unknown, or one of the run's without a price.
    """
    from atoll_runtime.simulate.planner.chips import CHIPS

    if not texts:
        return None
    result = {}
    for text in texts:
        generation, equals, price = text.partition("=")
        if not equals:
            raise UsageError(f"--price {text!r}: GENERATION=DOLLARS is wanted, such as v6e=2.70")
        values.choice("--price", generation, tuple(CHIPS))
        result[generation] = values.number("--price", price, most=1e6)
    for pool in planned.pools:
        if pool.generation not in result:
            raise UsageError(f"--price: none is given for {pool.generation}, of which pool {pool.name!r} is")
    return result
