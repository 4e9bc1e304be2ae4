"""`atoll simulate links`: units on unequal links to the syncer, under the rules of syncer and learner."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from atoll_cli.arguments import Option, Values, as_path, choice, count, number, seconds, several
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Report, finite, percent
from atoll_cli.text import amount, counted

if TYPE_CHECKING:
    from atoll_runtime.simulate.fleet.links import Links

MOST_UNITS = 128
LEAST_GBPS, MOST_GBPS = 1e-3, 1e5
LEAST_INTERVALS = 4
"""The fewest intervals of a simulation. The first two are not counted."""
FRAGMENTS, OVERLAP = 12, 2
MOST_STEPS = 500_000
"""The most inner steps of all units that one command simulates: half an hour on one core."""
Outages = dict[int, list[tuple[float, float]]]


def _outages(option: str, text: str) -> Outages:
    """Read outages by unit from a file with a JSON list of objects `{"unit": 0, "from": 600, "until": 720}`."""
    try:
        listed = json.loads(as_path(option, text).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{option} {text!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} {text!r}: a file with a JSON list is wanted: {error}") from error
    spans = []
    for n, each in enumerate(listed if isinstance(listed, list) else [listed]):
        where = f"{option} {text!r}, entry {n}"
        if not isinstance(each, dict) or each.keys() != {"unit", "from", "until"}:
            raise UsageError(
                f'{where}: a list of objects {{"unit", "from", "until"}} is wanted, not {json.dumps(each)}'
            )
        unit = count(0, MOST_UNITS - 1)(f"{where}: unit", str(each["unit"]))
        first = number()(f"{where}: from", str(each["from"]))
        until = number(first, above=True)(f"{where}: until", str(each["until"]))
        spans.append((unit, first, until))
    found: Outages = {}
    for unit, first, until in sorted(spans):
        earlier = found.setdefault(unit, [])
        if earlier and first < earlier[-1][1]:
            raise UsageError(f"{option} {text!r}: outages of unit {unit} overlap at {first:g} s")
        earlier.append((first, until))
    return found


OPTIONS = (
    Option("--links", "LIST", several(number(LEAST_GBPS, MOST_GBPS)),
           "Gbit/s of each unit's link, in each direction", default="2,2.5,3,3.5,4,4.5,5"),
    Option("--params", "N", number(1.0), "parameters of the model", default="12B"),
    Option("--step-time", "TIME", seconds(1e5, least=1e-3), "of an inner step", default="5s"),
    Option("--fragments", "P", count(1, 1024), "fragments (default: 12, at most --interval)"),
    Option("--interval", "H", count(1, 10_000), "steps between two merges of a fragment (default: as --fragments)"),
    Option("--overlap", "T", count(1, 1024), "rounds in flight (default: 2, at most --interval)"),
    Option("--codec", "NAME", choice("auto", "float32", "bf16", "int8", "int4"),
           "of the bodies; auto: each unit chooses, bf16 at most", default="bf16"),
    Option("--quorum", "K", count(1, MOST_UNITS), "units that a merge needs", default="1"),
    Option("--delay", "MS", number(0.0, 10_000.0), "of each link, one way, 10000 at most", default="0"),
    Option("--outages", "FILE", _outages, 'JSON list of {"unit", "from", "until"}: seconds without a link'),
    Option("--steps", "N", count(1, 1_000_000), "global steps (default: 600, at least 8 intervals)"),
)  # fmt: skip


def answer(found: Values) -> Report:
    """Return a row for each unit. Raises `UsageError`."""
    from atoll_runtime.contract import CommunicationSpec, OuterSpec, QuorumSpec
    from atoll_runtime.simulate.fleet.links import Links, on_links
    from atoll_runtime.simulate.shard import Stalled

    codec, adaptive = found["codec"], found["codec"] == "auto"
    fragments = found["fragments"] or min(FRAGMENTS, found["interval"] or FRAGMENTS)
    interval = found["interval"] or fragments
    asked = Links(
        gbps=found["links"],
        params=found["params"],
        step_seconds=[found["step_time"]] * len(found["links"]),
        outer=OuterSpec(
            fragments=fragments,
            interval=interval,
            overlap=found["overlap"] or min(OVERLAP, interval),
            codec="bf16" if adaptive else codec,
        ),
        communication=CommunicationSpec(codec=None if adaptive else codec),
        quorum=QuorumSpec(min=found["quorum"]),
        delay=found["delay"] / 1000,
        outages=found["outages"] or {},
        steps=found["steps"] or max(600, 8 * interval),
    )
    _check(asked)
    try:
        units, goodput = on_links(asked)
    except Stalled as error:
        raise UsageError(
            f"--links, --delay, --outages: contributions come too late for --quorum '{found['quorum']}' and "
            f"--step-time '{found['step_time']:g}', {error}; better links, a smaller quorum or longer steps are wanted"
        ) from error
    rows = tuple(asdict(unit) for unit in units)
    advised = [row.pop("advice") for row in rows]  # a plan shows each
    none = [advice for row, advice in zip(rows, advised, strict=True) if math.isinf(row["need_gbps"])]
    for row in rows:
        row["need_gbps"] = finite(row["need_gbps"])
    title = (
        f"{counted(len(rows), 'unit')}, {amount(asked.params)} parameters in "
        f"{counted(fragments, 'fragment')}, codec {codec}, "
        f"H = {interval}, steps of {found['step_time']:g} s, K = {asked.quorum.min}"
    )
    return Report(
        title,
        tuple(rows[0]),
        rows,
        notes=(
            f"goodput {percent(goodput)}: share of all units' time in inner steps.",
            "member: share of rounds. merged: share of trained tokens; the rest is under way at the end, or came "
            "too late. hidden: share of the unit's time in inner steps. period: it takes part in one of so many "
            "rounds. codec, streams and period: as the unit uses its link at the end. need: for every round in "
            "that codec.",
            *(f"none: no bandwidth suffices for every round; {advice} would do." for advice in none[:1]),
        ),
        document={"units": rows, "goodput": goodput},
    )


def in_time(option: str, asked: Links) -> None:
    """Raises `UsageError` if a quorum needs links that are too slow for whole versions. `option` sets links."""
    from atoll_runtime.protocol.rules import TRANSFER_SECONDS

    least = asked.quorum_gbps(asked.gbps)
    if (longest := asked.version_seconds(least)) > TRANSFER_SECONDS:
        raise UsageError(
            f"{option} '{least:g}': a whole version takes {longest:.0f} s and is given up after "
            f"{TRANSFER_SECONDS:g}, so no quorum is reached; "
            f"{math.ceil(1000 * least * longest / TRANSFER_SECONDS) / 1000} or more is wanted"
        )


def affordable(steps: int, every: float, others: str = "") -> None:
    """Raises `UsageError` if `every`, the inner steps of all units, would take hours."""
    if every > MOST_STEPS:
        raise UsageError(
            f"--steps '{steps}': {every:,.0f} inner steps of all units; at most {MOST_STEPS:,} are simulated: fewer "
            f"--steps, fewer units{others} are wanted"
        )


def _check(asked: Links) -> None:
    """Raises `UsageError` for values that do not fit together."""
    units, quorum = len(asked.gbps), asked.quorum.min
    if units > MOST_UNITS:
        raise UsageError(f"--links: {units} units; at most {MOST_UNITS} are taken")
    if quorum > units:
        raise UsageError(f"--quorum '{quorum}': at most the {counted(units, 'unit')} of --links is wanted")
    in_time("--links", asked)
    outer = asked.outer
    count(1, outer.interval)("--fragments", str(outer.fragments))
    count(1, outer.interval)("--overlap", str(outer.overlap))
    count(LEAST_INTERVALS * outer.interval, 1_000_000)("--steps", str(asked.steps))
    for unit in asked.outages:
        if unit >= units:
            raise UsageError(f"--outages: unit {unit}; --links has the units 0 to {units - 1}")
    others = ", a longer --step-time or less --delay and --outages"
    affordable(asked.steps, asked.inner_steps(), others)
