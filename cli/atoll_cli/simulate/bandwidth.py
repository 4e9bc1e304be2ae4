"""`atoll simulate bandwidth`: Gbit/s that a site needs, or what a link allows."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll_cli import values
from atoll_cli.errors import UsageError
from atoll_cli.simulate.bandwidth_options import (
    CASE_OPTIONS,
    METHODS,
    UTILIZATION,
    read_traffic,
    refuse_unused,
)
from atoll_cli.simulate.output import Column, Report, add_output_options, as_gbps, as_share, deliver

if TYPE_CHECKING:
    from atoll_runtime.simulate.wan.traffic import Method, Traffic

FIELDS = {
    "step_seconds": "--step-time",
    "gbps": "--link-gbps",
    "outer.fragments": "--fragments",
    "sizes": "--fragments",
}
"""Fields of the simulation whose option has another name."""


def add_options(question: argparse.ArgumentParser) -> None:
    """Adds what only this question takes."""
    add = question.add_argument
    add("--method", metavar="M", help=f"{', '.join(METHODS)}; without it, every published figure")
    add("--params", metavar="N", help="parameters, such as 5B")
    add("--model", metavar="PRESET", help="a preset instead of --params, with its own fragments")
    add(
        "--step-time",
        metavar="S",
        help="of one step's compute; with --link-gbps the shortest that stays hidden",
    )
    add("--bits", metavar="B", help="of a parameter on the wire, 16")
    add("--sites", metavar="M", help="8")
    add(
        "--utilization",
        metavar="U",
        help=f"share of time that computes, {UTILIZATION}; decoupled learners never wait",
    )
    add("--interval", metavar="H", help="steps between two exchanges of a fragment; not for data-parallel")
    add("--fragments", metavar="P", help="not for data-parallel and diloco")
    add("--overlap", metavar="T", help="steps to hide a fragment behind; for streaming-overlap and decoupled")
    add(
        "--layers",
        metavar="L",
        help="of the model, rounded to the same number in each fragment; else by its size",
    )
    add("--latency", metavar="S", help="there and back, 0")
    add("--shared-link", action="store_true", help="one link carries both directions")
    add("--link-gbps", metavar="G", help="links to judge, such as 2,5")
    add_output_options(question)


def run(options: argparse.Namespace) -> int:
    """Answers for one case, for one case over given links, or with the published table.

    Raises:
        UsageError: an option's value cannot be used.
    """
    try:
        report = _report(options)
    except ValueError as error:  # of the simulation: "field: what is wrong"
        field, _, reason = str(error).partition(": ")
        raise UsageError(f"{FIELDS.get(field, '--' + field)}: {reason}") from error
    deliver(report, options)
    return 0


def _report(options: argparse.Namespace) -> Report:
    if options.method is None:
        given = next(
            (name for name in CASE_OPTIONS if getattr(options, name.replace("-", "_")) not in (None, False)),
            None,
        )
        if given:
            raise UsageError(f"--{given}: --method is wanted with it, one of {', '.join(METHODS)}")
        from atoll_cli.simulate.bandwidth_published import published

        return published()
    from atoll_runtime.simulate.wan.traffic import Method

    method = Method(values.choice("--method", options.method, METHODS))
    refuse_unused(options, method)
    target = (
        UTILIZATION
        if options.utilization is None
        else values.number("--utilization", options.utilization, 0.0, 0.9999, above=True)
    )
    links = (
        []
        if options.link_gbps is None
        else values.numbers("--link-gbps", options.link_gbps, 0.0, 1e6, above=True)
    )
    traffic = read_traffic(options, method)
    return _judged(method, traffic, target, links, options) if links else _needed(method, traffic, target)


def _case(method: Method, traffic: Traffic, target: float) -> dict[str, Any]:
    """The question's own values and the answer."""
    from atoll_runtime.simulate.wan.bandwidth import need
    from atoll_runtime.simulate.wan.traffic import Method, rounds

    schedule = rounds(method, traffic)
    return {
        "method": str(method),
        "params": traffic.params,
        "step_seconds": traffic.step_seconds,
        "bits": traffic.bits,
        "sites": traffic.sites,
        "utilization": 1.0 if method is Method.DECOUPLED else target,
        "interval": schedule.interval,
        "fragments": schedule.fragments,
        "overlap": schedule.overlap,
        "layers": schedule.layers,
        "largest_fragment": max(traffic.sizes or (1 / schedule.fragments,)),
        "latency_seconds": traffic.latency,
        "shared_link": traffic.shared,
        **asdict(need(method, traffic, target)),
    }


CASE = (
    Column("method", "METHOD"),
    Column("params", "PARAMS", lambda value: f"{value / 1e9:.4g}B"),
    Column("step_seconds", "STEP s", lambda value: f"{value:.3g}"),
    Column("bits", "BITS", lambda value: f"{value:g}"),
    Column("sites", "SITES"),
    Column("interval", "H"),
    Column("fragments", "P"),
    Column("overlap", "τ"),
)
NEED = (
    Column("utilization", "UTILIZATION", as_share),
    Column("gbps_peak", "PEAK", as_gbps),
    Column("gbps_mean", "MEAN", as_gbps),
    Column("gbps_link", "LINK", as_gbps),
    Column("gbps_both_directions", "PEAK, BOTH", as_gbps),
)


def _rounded(traffic: Traffic, row: Mapping[str, Any]) -> list[str]:
    """What becomes of layers that cannot be dealt out evenly."""
    if traffic.layers in (None, row["layers"]):
        return []
    return [
        f"Computed with {row['layers']} layers, the same number in each fragment; the model has {traffic.layers}."
    ]


def _needed(method: Method, traffic: Traffic, target: float) -> Report:
    row = _case(method, traffic, target)
    notes = ["Gbit/s of one site's link, " + ("both directions." if traffic.shared else "in one direction.")]
    if row["gbps_peak"] < row["gbps_link"]:
        notes.append(
            f"PEAK is of one fragment's stream over its {row['overlap']} steps; several are on their way at "
            "once and the link must carry LINK."
        )
    notes += _rounded(traffic, row)
    return Report("Bandwidth that a site needs", CASE + NEED, (row,), tuple(notes), _draw_case(traffic, row))


def _judged(
    method: Method, traffic: Traffic, target: float, links: list[float], options: argparse.Namespace
) -> Report:
    from atoll_runtime.simulate.wan.link import hidden_step, outlook

    rows = []
    for gbps in links:
        held = traffic
        if options.step_time is None:
            # One site alone exchanges nothing; any step is hidden, so the one given stays.
            held = replace(traffic, step_seconds=hidden_step(method, traffic, gbps, target) or 1.0)
        view = asdict(outlook(method, held, gbps, target))
        view["link_utilization"] = view.pop("utilization")
        rows.append({"link_gbps": gbps, **_case(method, held, target), **view})
    columns = (
        Column("link_gbps", "LINK Gbit/s", as_gbps),
        *CASE,
        Column("link_utilization", "UTILIZATION", as_share),
        Column("hidden_step_seconds", "HIDDEN FROM s", lambda value: f"{value:.3g}"),
        Column("interval_reached", "REAL H", lambda value: f"{value:.3g}"),
        Column("speedup_data_parallel", "x DATA-PARALLEL", lambda value: f"{value:.3g}"),
        Column("speedup_diloco", "x DILOCO", lambda value: f"{value:.3g}"),
    )
    notes = (
        f"Hidden: {'every fragment is there in time' if method == 'decoupled' else as_share(target) + ' compute'}.",
        "Data-parallel and DiLoCo (H = 100) send bfloat16 over the same link.",
        "Published: 12B over 2-5 Gbit/s, more than 20 times faster than synchronous training.",
        *_rounded(traffic, rows[0]),
    )
    return Report(
        "What a link between sites allows", columns, tuple(rows), notes, _draw_case(traffic, rows[0])
    )


def _draw_case(traffic: Traffic, row: Mapping[str, Any]) -> Any:
    from atoll_cli.simulate.bandwidth_chart import draw_case

    return partial(draw_case, traffic=traffic, row=row)
