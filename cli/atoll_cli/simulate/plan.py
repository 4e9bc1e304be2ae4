"""`atoll simulate plan RUN.yaml`: what to expect of a TrainingRun, and which of its knobs would do better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atoll_cli.arguments import Option, Read, Values, as_path, choice, count, number, seconds
from atoll_cli.errors import UsageError
from atoll_cli.simulate.links import MOST_STEPS, in_time
from atoll_cli.simulate.output import Report
from atoll_cli.text import amount, counted

if TYPE_CHECKING:
    from atoll_operator.api.sections import SyncerSpec
    from atoll_runtime.simulate.planner.run import Assumptions, Run

MOST_GBPS = 1e6
MOST_APART = 100.0
"""Largest ratio of two pools' step times. While the slowest units make the steps of a plan, the others make this many
times as many."""
LEAST_MTBI = 60.0
"""Seconds. A chip that is interrupted more often than it can be replaced trains nothing."""


def _named(read: Read) -> Read:
    """Read `VALUE`, or `NAME=VALUE`. The result is (name or "", value)."""

    def pair(option: str, text: str) -> tuple[str, float]:
        name, _, value = text.rpartition("=")
        return name, read(option, value)

    return pair


def _price(option: str, text: str) -> tuple[str, float]:
    """Read `GENERATION=DOLLARS`."""
    generation, _, dollars = text.rpartition("=")
    if not generation:
        raise UsageError(f"{option} {text!r}: GENERATION=DOLLARS is wanted, such as v6e=2.70")
    return generation, number(0, 1e6)(option, dollars)


OPTIONS = (
    Option("file", "RUN.yaml", as_path, "a TrainingRun"),
    Option("--price", "GEN=DOLLARS", _price, "of a chip-hour: v6e=2.70", many=True),
    Option("--step-time", "[POOL=]TIME", _named(seconds(1e6, least=1e-6)), "of an inner step, measured", many=True),
    Option("--mtbi", "[POOL=]TIME", _named(seconds(least=LEAST_MTBI)),
           "between interruptions of a chip (1y)", many=True),
    Option("--mfu", "SHARE", number(0, 1, above=True), "of the chips' peak that a step reaches (0.4)"),
    Option("--link-gbps", "G", number(0, MOST_GBPS, above=True),
           "of a unit's link each way, where pools[].link is not set"),
    Option("--seed-gbps", "G", number(0, MOST_GBPS, above=True),
           "at which a healing unit gets its state (checkpoint 32, peer 200)"),
    Option("--repair", "TIME", seconds(zero=True), "until a lost slice stands again; 0: at once (10m)"),
    Option("--seed", "N", count(0, 2**32 - 1), "of the random numbers", default="0"),
)  # fmt: skip


def answer(found: Values) -> Report:
    """Return the plan. Raises `UsageError` if the file or an option cannot be used."""
    from atoll_cli.simulate.planview import document, report
    from atoll_cli.simulate.runfile import read_run
    from atoll_runtime.simulate.planner.choices import choose
    from atoll_runtime.simulate.planner.merging import on_their_links
    from atoll_runtime.simulate.planner.run import Assumptions

    spec, planned = read_run(found["file"])
    fields = {"mfu": "mfu", "link_gbps": "link_gbps", "seed_gbps": "seed_gbps", "repair": "repair_seconds"}
    assumed = Assumptions(
        step_seconds=_times("--step-time", found["step_time"], planned),
        pool_mtbi=_times("--mtbi", found["mtbi"], planned),
        seed=found["seed"],
        **{field: found[name] for name, field in fields.items() if found[name] is not None},
    )
    _near(found["file"], planned, assumed)
    names = {pool.name for pool in planned.pools} - assumed.pool_mtbi.keys()
    spot = {pool.name for pool in spec.pools if pool.capacity == "Spot"} & names
    prices, links = prices_of(found["price"], planned), on_their_links(planned, assumed)
    warnings = too_small(spec.syncer, planned) + uneven(planned)
    plan = document(planned, assumed, choose(planned, assumed), links, prices, warnings)
    plan["assumed"]["spot_as_on_demand"] = sorted(spot)
    return report(plan)


def _times(option: str, given: Sequence[tuple[str, float]], planned: Run) -> dict[str, float]:
    """Return seconds by pool. A time without a pool's name is for all pools that are not named."""
    names = [pool.name for pool in planned.pools]
    found: dict[str, float] = {}
    for pool, value in sorted(given, key=lambda each: each[0] != ""):
        found |= {choice(*names)(option, pool): value} if pool else dict.fromkeys(names, value)
    return found


def _near(path: Path, planned: Run, assumed: Assumptions) -> None:
    """Raises `UsageError` for pools whose steps take such different times, an interval so long or links so slow that
    the simulation would take hours, and for links that carry no version."""
    from atoll_runtime.simulate.planner.merging import links_of
    from atoll_runtime.simulate.planner.needs import step_of

    times = sorted((step_of(pool, planned, assumed).seconds, pool.name) for pool in planned.pools)
    (least, fast), (most, slow) = times[0], times[-1]
    if most > MOST_APART * least:
        raise UsageError(
            f"{path}: a step takes {most:.3g} s in pool {slow!r} and {least:.3g} s in pool {fast!r}; at most "
            f"{MOST_APART:g} times as long is wanted: another spec.pools[].batch or --step-time"
        )
    if assumed.least_link(planned) is None:
        return
    asked = links_of(planned, assumed)
    in_time(f"{path}: spec.pools[].link or --link-gbps", asked)
    if (steps := asked.inner_steps()) > MOST_STEPS:
        raise UsageError(
            f"{path}: spec.outer.interval: {planned.outer.interval}: {steps:,.0f} inner steps of all units on their "
            f"links; at most {MOST_STEPS:,} are simulated: a shorter interval, or faster spec.pools[].link or "
            "--link-gbps, is wanted"
        )


def too_small(syncer: SyncerSpec, planned: Run) -> list[str]:
    """Return a line for each resource of which the spec gives a shard less than it needs."""
    from atoll_cli.simulate.admission import quantity
    from atoll_runtime.simulate.planner.needs import shard_need

    need = shard_need(planned)
    given = {
        "storage": (syncer.storage, need["volume"]),
        "resources.limits.memory": (syncer.resources.limits.get("memory"), need["memory"]),
        "resources.requests.memory": (syncer.resources.requests.get("memory"), need["memory"]),
    }
    return [
        f"spec.syncer.{field}: {value}, and a shard comes to {amount(least, 'B')}: give it that much, or more shards"
        for field, (value, least) in given.items()
        if value is not None and quantity(str(value)) < least
    ]


def uneven(planned: Run) -> list[str]:
    """Return a line if the largest fragment is far above the mean."""
    from atoll_runtime.simulate.planner.needs import EVEN, even_fragments, shard_need

    if (ratio := shard_need(planned)["largest_fragment"]) <= EVEN:
        return []
    fewer = even_fragments(planned)
    return [
        f"spec.outer.fragments: {planned.outer.fragments} in each of {counted(planned.shards, 'shard')}: the largest "
        f"is {ratio:.3g} times the mean; {f'{fewer} are even enough' if fewer else 'fewer shards are wanted'}"
    ]


def prices_of(given: Sequence[tuple[str, float]], planned: Run) -> dict[str, float] | None:
    """Dollars a chip-hour by generation; None without `--price`. Raises `UsageError`: one is unknown or missing."""
    from atoll_runtime.simulate.planner.needs import CHIPS

    for generation, _ in given:
        choice(*CHIPS)("--price", generation)
    result = dict(given)
    for pool in planned.pools:
        if result and pool.generation not in result:
            raise UsageError(f"--price: none is given for {pool.generation}, of which pool {pool.name!r} is")
    return result or None
