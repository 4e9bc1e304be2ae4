"""Options of `atoll simulate goodput`: from text to a fleet and how it recovers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll_cli import values
from atoll_cli.errors import UsageError

if TYPE_CHECKING:
    from atoll_runtime.simulate.fleet.goodput import Case
    from atoll_runtime.simulate.fleet.setting import Fleet, Heal, Recovery

METHODS = ("rigid", "elastic", "decoupled", "unit")
CHIPS, LEARNERS = 1_200_000, 8
"""Where one of them is not given; rigid and elastic are one learner."""

PARAMETERS = 5e9
"""Of the paper's failure study; where a seed source is given without a model's size."""

MOST_INTERRUPTIONS = 20_000_000
"""To simulate at once: a few minutes on one core."""

TIMES = {
    "notice": "notice",
    "resize": "pause",
    "patience": "patience",
    "repair": "repair",
    "checkpoint": "checkpoint",
}
"""Options and the fields of `Recovery` that they set."""

USED_BY = {
    "checkpoint": ("rigid",),
    "jitter": ("decoupled", "unit"),
    "patience": ("elastic", "decoupled"),
    "resize": ("rigid", "elastic", "decoupled"),
}
"""Options that only these methods have a use for."""

FLEET_OPTIONS = (
    "mtbi", "slice", "spares", "quorum", "grace", "speeds", "jitter",
    "in_place", "seed_source", "params", "seed_gbps", *TIMES,
)  # fmt: skip
"""Options that describe a fleet and how it recovers."""


def read_case(options: argparse.Namespace) -> Case:
    """One fleet, its method and how long it is looked at."""
    from atoll_runtime.simulate.fleet.goodput import Case
    from atoll_runtime.simulate.fleet.setting import DAY, Method

    method: Method = values.choice("--method", options.method or "decoupled", METHODS)  # type: ignore[assignment]
    for name, methods in USED_BY.items():
        if getattr(options, name) is not None and method not in methods:
            raise UsageError(f"--{name}: goes with --method {', '.join(methods)}, not with {method}")
    single = method in ("rigid", "elastic")
    chips = CHIPS if options.chips is None else values.count("--chips", options.chips, 1, 10**9)
    learners = 1 if single else LEARNERS
    if options.learners is not None:
        learners = values.count("--learners", options.learners, 1, 4096)
    if single and learners != 1:
        raise UsageError(f"--learners {options.learners!r}: {method} is one learner, 1 is wanted")
    if learners > chips:
        raise UsageError(
            f"--learners {learners}: more than the chips there are ({chips}); a learner needs one"
        )
    recovery, heal = read_recovery(options, method)
    return Case(
        fleet=read_fleet(options, chips, learners),
        method=method,
        recovery=recovery,
        heal=heal,
        seconds=read_days(options) * DAY,
        seed=read_seed(options),
        repeats=read_repeats(options),
    )


def read_fleet(options: argparse.Namespace, chips: int, learners: int) -> Fleet:
    """So many chips in so many learners, and what else was said of them."""
    from atoll_runtime.simulate.fleet.setting import Fleet

    fleet = Fleet(chips=chips, learners=learners)
    if options.mtbi is not None:
        fleet = replace(fleet, mtbi_seconds=values.seconds("--mtbi", options.mtbi))
    if options.slice is not None:
        fleet = replace(fleet, slice_chips=values.count("--slice", options.slice))
    if options.spares is not None:
        fleet = replace(fleet, spare_slices=values.count("--spares", options.spares, 0, 10_000))
    if options.quorum is not None:
        fleet = replace(fleet, quorum=values.count("--quorum", options.quorum, 1, learners))
    if options.speeds is not None:
        speeds = values.numbers("--speeds", options.speeds, 0, 1000, above=True)
        fleet = replace(fleet, speeds=tuple(speeds))
    if options.jitter is not None:
        fleet = replace(fleet, jitter=values.number("--jitter", options.jitter, 0, 1))
    return fleet


def read_recovery(options: argparse.Namespace, method: str) -> tuple[Recovery, Heal]:
    """Times to recover; a seed source sets what its method fills: a slice, a unit, or all at once (rigid)."""
    from atoll_runtime.simulate.fleet.setting import SEED_GBPS, Heal, Recovery, seeding_seconds

    given = {
        field: _time(f"--{name}", getattr(options, name))
        for name, field in TIMES.items()
        if getattr(options, name) is not None
    }
    recovery, heal = replace(Recovery(), **given), Heal()
    if options.in_place is not None:
        recovery = replace(recovery, in_place=_time("--in-place", options.in_place))
    if options.seed_source is None and options.params is None and options.seed_gbps is None:
        return recovery, heal
    source = values.choice("--seed-source", options.seed_source or "checkpoint", ("checkpoint", "peer"))
    gbps = SEED_GBPS[source]  # type: ignore[index]
    if options.seed_gbps is not None:
        gbps = values.number("--seed-gbps", options.seed_gbps, 0, 1e6, above=True)
    parameters = PARAMETERS
    if options.params is not None:
        parameters = values.number("--params", options.params, 1, 1e15)
    seconds = seeding_seconds(parameters, gbps)
    if method == "unit":
        return recovery, replace(heal, restore=seconds, catch_up=0.0 if source == "peer" else heal.catch_up)
    if method == "rigid":
        return replace(recovery, pause=recovery.pause + seconds), heal
    return replace(recovery, seeding=seconds), heal


def read_grace(options: argparse.Namespace, method: str) -> str | None:
    """Whether merges wait for more than K; None for one learner alone, which merges with nobody."""
    if method in ("rigid", "elastic"):
        if options.grace is not None:
            raise UsageError(
                f"--grace {options.grace!r}: {method} merges nothing; decoupled or unit is wanted"
            )
        return None
    return values.choice("--grace", options.grace or "auto", ("0", "auto"))


def merged_share(fleet: Fleet, grace: str) -> float:
    """0…1, of the tokens of learners that are there, with the published P, H and τ."""
    from atoll_runtime.contract import GraceSpec, OuterSpec
    from atoll_runtime.simulate.fleet import merging
    from atoll_runtime.sync.rules import Rules

    outer, spec, kinds = OuterSpec(), GraceSpec(), len(fleet.speeds)
    rules = Rules(
        fragments=outer.fragments,
        interval=outer.interval,
        overlap=outer.overlap,
        quorum=fleet.quorum,
        grace_fraction=spec.fraction if grace == "auto" else 0.0,
        grace_steps=spec.max_steps,
        target_steps=None,
        target_tokens=None,
    )
    speeds = [fleet.speeds[number * kinds // fleet.learners] for number in range(fleet.learners)]
    return merging.merged_share(speeds, rules, fleet.jitter)


def read_days(options: argparse.Namespace) -> float:
    """Days to simulate."""
    return 1.0 if options.days is None else values.number("--days", options.days, 0, 36_525, above=True)


def read_seed(options: argparse.Namespace) -> int:
    """Seed of the random numbers."""
    return 0 if options.seed is None else values.count("--seed", options.seed, 0, 2**63 - 1)


def read_repeats(options: argparse.Namespace) -> int:
    """Runs behind a mean."""
    return 8 if options.repeats is None else values.count("--repeats", options.repeats, 4, 10_000)


def _time(option: str, text: str) -> float:
    """0 is a time here."""
    return 0.0 if text in ("0", "0s") else values.seconds(option, text)


def check_work(options: argparse.Namespace, interruptions: float) -> None:
    """Refuses what would run for hours."""
    if interruptions > MOST_INTERRUPTIONS:
        often = "" if options.mtbi is None else f"--mtbi {options.mtbi} with "
        less = (
            "fewer --days or --repeats"
            if options.mtbi is None
            else "a longer --mtbi, fewer --days or --repeats"
        )
        raise UsageError(
            f"{often}--days {options.days or 1}: {interruptions:,.0f} interruptions over all repeats; at most "
            f"{MOST_INTERRUPTIONS:,} are simulated, so {less} are wanted"
        )
