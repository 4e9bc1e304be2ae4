"""`atoll simulate goodput`: the useful share of the chips' time under failures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from atoll_cli import values
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Report
from atoll_cli.simulate.question import Option, Values, choice, count, number, numbers, refuse, seconds

if TYPE_CHECKING:
    from atoll_runtime.simulate.fleet.goodput import Case
    from atoll_runtime.simulate.fleet.setting import Fleet, Heal, Method, Recovery, SeedSource

METHODS = ("rigid", "elastic", "decoupled", "unit")
CHIPS, LEARNERS = 1_200_000, 8
"""Where one of them is not given; rigid and elastic are one learner."""
PARAMETERS = 5e9
"""Of the paper's failure study; where a seed source is given without a model's size."""
MOST_INTERRUPTIONS = 20_000_000
"""To simulate at once: a few minutes on one core."""

OPTIONS = (
    Option("--method", "M", choice(*METHODS), f"{', '.join(METHODS)} (Atoll's own); without it, the published table"),
    Option("--chips", "N", count(1, 10**9), "that train, such as 1.2M"),
    Option("--learners", "M", count(1, 4096), "islands; 1 for rigid and elastic"),
    Option("--mtbi", "T", values.seconds, "mean time between interruptions of one chip, 1y"),
    Option("--slice", "CHIPS", count(), "chips that one interruption takes away, 256"),
    Option("--spares", "N", count(0, 10_000), "slices of each learner that stand by, 0; they count as allocated"),
    Option("--quorum", "K", count(1, 4096), "learners that a merge needs, 1"),
    Option("--grace", "G", choice("0", "auto"), "0 or auto: whether a merge waits for more than K, auto"),
    Option("--speeds", "S,...", numbers(0, 1000, above=True), "relative step times of equal shares of the chips, 1"),
    Option("--jitter", "J", number(0, 1), "relative spread of each share's step time, 0"),
    Option("--notice", "T", seconds, "from the news of an interruption to the stop for it"),
    Option("--resize", "T", seconds, "pause to take slices out or in, or to start again"),
    Option("--patience", "T", seconds, "at most so long a slice that is back waits to share a pause"),
    Option("--repair", "T", seconds, "from an interruption until the hardware is back"),
    Option("--checkpoint", "T", seconds, "rigid: work between two restore points, 0"),
    Option("--in-place", "T", seconds, "the hosts stay healthy, and containers are back after T"),
    Option("--seed-source", "S", choice("checkpoint", "peer"), "checkpoint or peer: from where state is loaded"),
    Option("--params", "N", number(1, 1e15), "of the model, for the time to seed, 5B"),
    Option("--seed-gbps", "G", number(0, 1e6, above=True), "Gbit/s at which one replica's state comes in"),
    Option("--days", "D", number(0, 36_525, above=True), "to simulate", default="1"),
    Option("--seed", "S", count(0, 2**63 - 1), "of the random numbers", default="0"),
    Option("--repeats", "R", count(4, 10_000), "runs behind the mean and its interval; at least 4", default="8"),
)  # fmt: skip

RECOVERY = {
    "notice": "notice",
    "resize": "pause",
    "patience": "patience",
    "repair": "repair",
    "checkpoint": "checkpoint",
    "in_place": "in_place",
}
"""Options and the fields of `Recovery` that they set."""
FLEET = {
    "mtbi": "mtbi_seconds",
    "slice": "slice_chips",
    "spares": "spare_slices",
    "quorum": "quorum",
    "speeds": "speeds",
    "jitter": "jitter",
}
"""Options and the fields of `Fleet` that they set."""
USED_BY = {
    "checkpoint": ("rigid",),
    "jitter": ("decoupled", "unit"),
    "patience": ("elastic", "decoupled"),
    "resize": ("rigid", "elastic", "decoupled"),
    "grace": ("decoupled", "unit"),
}
"""Options that only these methods use."""


def answer(found: Values) -> Report:
    """For one fleet, or the published table. Raises `UsageError`."""
    from atoll_runtime.simulate.fleet.setting import DAY

    if found["method"] is None and found["chips"] is None and found["learners"] is None:
        from atoll_cli.simulate.goodput_report import cases, published

        refuse(found, ("quorum", "grace"), "--learners is wanted with it")
        recovery, _ = _recovery(found, "elastic")
        run = {"seconds": found["days"] * DAY, "seed": found["seed"], "repeats": found["repeats"]}
        asked = cases(_fleet(found, CHIPS, LEARNERS), recovery, **run)
        _check_work(found, sum(case.interruptions for case in asked))
        return published(asked)
    from atoll_cli.simulate.goodput_report import report

    case = _case(found)
    _check_work(found, case.interruptions)
    return report(case, None if case.method in ("rigid", "elastic") else found["grace"] or "auto")


def _case(found: Values) -> Case:
    """One fleet, its method and how long it is simulated."""
    from atoll_runtime.simulate.fleet.goodput import Case
    from atoll_runtime.simulate.fleet.setting import DAY

    method: Method = found["method"] or "decoupled"
    for name, methods in USED_BY.items():
        if method not in methods:
            refuse(found, (name,), f"goes with --method {', '.join(methods)}, not with {method}")
    single = method in ("rigid", "elastic")
    chips = found["chips"] or CHIPS
    learners = found["learners"] or (1 if single else LEARNERS)
    if single and learners != 1:
        raise UsageError(f"--learners '{learners}': {method} is one learner, 1 is wanted")
    if learners > chips:
        raise UsageError(
            f"--learners '{learners}': more than the chips there are ({chips}); a learner needs one"
        )
    recovery, heal = _recovery(found, method)
    return Case(
        fleet=_fleet(found, chips, learners),
        method=method,
        recovery=recovery,
        heal=heal,
        seconds=found["days"] * DAY,
        seed=found["seed"],
        repeats=found["repeats"],
    )


def _fleet(found: Values, chips: int, learners: int) -> Fleet:
    from atoll_runtime.simulate.fleet.setting import Fleet

    if (found["quorum"] or 1) > learners:
        raise UsageError(f"--quorum '{found['quorum']}': a whole number from 1 to {learners} is wanted")
    own = {field: found[name] for name, field in FLEET.items() if found[name] is not None}
    if found["speeds"] is not None:
        own["speeds"] = tuple(found["speeds"])
    return Fleet(chips=chips, learners=learners, **own)


def _recovery(found: Values, method: str) -> tuple[Recovery, Heal]:
    """Times to recover; a seed source sets what its method fills: a slice, a unit, or all at once (rigid)."""
    from atoll_runtime.simulate.fleet.setting import SEED_GBPS, Heal, Recovery, seeding_seconds

    recovery = Recovery(**{field: found[name] for name, field in RECOVERY.items() if found[name] is not None})
    heal = Heal()
    if all(found[name] is None for name in ("seed_source", "params", "seed_gbps")):
        return recovery, heal
    source: SeedSource = found["seed_source"] or "checkpoint"
    seeding = seeding_seconds(found["params"] or PARAMETERS, found["seed_gbps"] or SEED_GBPS[source])
    if method == "unit":
        return recovery, replace(heal, restore=seeding, catch_up=0.0 if source == "peer" else heal.catch_up)
    if method == "rigid":
        return replace(recovery, pause=recovery.pause + seeding), heal
    return replace(recovery, seeding=seeding), heal


def _check_work(found: Values, interruptions: float) -> None:
    """Refuses what would run for hours."""
    if interruptions > MOST_INTERRUPTIONS:
        often = "" if found["mtbi"] is None else f"--mtbi {found['mtbi']:g}s with "
        less = ("" if found["mtbi"] is None else "a longer --mtbi, ") + "fewer --days or --repeats"
        raise UsageError(
            f"{often}--days {found['days']:g}: {interruptions:,.0f} interruptions over all repeats; at most "
            f"{MOST_INTERRUPTIONS:,} are simulated, so {less} are wanted"
        )
