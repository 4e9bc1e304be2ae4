"""`atoll simulate bandwidth`: Gbit/s that a site needs, or what a link allows."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from atoll_cli import values
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Column, Report, as_gbps, as_share
from atoll_cli.simulate.question import Option, Values, choice, count, number, numbers, refuse

if TYPE_CHECKING:
    from atoll_runtime.simulate.wan.traffic import Method, Traffic

METHODS = ("data-parallel", "diloco", "streaming", "streaming-overlap", "decoupled")
UTILIZATION = 0.95
"""As in the published comparison of eight data centres."""

OPTIONS = (
    Option("--method", "M", choice(*METHODS), f"{', '.join(METHODS)}; without it, every published figure"),
    Option("--params", "N", number(1, 1e15), "parameters, such as 5B"),
    Option("--model", "PRESET", lambda _, text: text, "a preset instead of --params, with its own fragments"),
    Option("--step-time", "S", lambda option, text: values.seconds(option, text, 1e6),
           "of one step's compute; with --link-gbps the shortest that stays hidden"),
    Option("--bits", "B", number(0, 64, above=True), "of a parameter on the wire, 16"),
    Option("--sites", "M", count(1, 100_000), "8"),
    Option("--utilization", "U", number(0, 0.9999, above=True),
           f"share of time that computes, {UTILIZATION}; decoupled learners never wait"),
    Option("--interval", "H", count(1, 100_000), "steps between two exchanges of a fragment; not for data-parallel"),
    Option("--fragments", "P", count(1, 1024), "not for data-parallel and diloco"),
    Option("--overlap", "T", count(0, 1024), "steps to hide a fragment behind; for streaming-overlap and decoupled"),
    Option("--layers", "L", count(1, 1024), "of the model, rounded to the same number in each fragment"),
    Option("--latency", "S", number(0, 3600), "there and back, 0"),
    Option("--shared-link", "", lambda _, text: text, "one link carries both directions", flag=True),
    Option("--link-gbps", "G", numbers(0, 1e6, above=True), "links to judge, such as 2,5"),
)  # fmt: skip
UNUSED = {
    "data-parallel": ("interval", "fragments", "overlap"),
    "diloco": ("fragments", "overlap"),
    "streaming": ("overlap",),
    "streaming-overlap": (),
    "decoupled": ("utilization",),
}
"""Options that a method does not use: what is exchanged whole is not cut, what waits hides nothing."""
FIELDS = {
    "step_seconds": "--step-time",
    "gbps": "--link-gbps",
    "outer.fragments": "--fragments",
    "sizes": "--fragments",
}
"""Fields of the simulation whose option has another name."""


def answer(found: Values) -> Report:
    """For one case, for one case over given links, or the published table. Raises `UsageError`."""
    if found["method"] is None:
        given = [option.name.removeprefix("--") for option in OPTIONS[1:]]
        refuse(found, given, f"--method is wanted with it, one of {', '.join(METHODS)}")
        from atoll_cli.simulate.bandwidth_published import published

        return published()
    from atoll_runtime.simulate.wan.traffic import Method

    method = Method(found["method"])
    refuse(found, UNUSED[method], f"not with --method {method}, whose answer does not depend on it")
    try:
        traffic = _traffic(found, method)
        target = found["utilization"] or UTILIZATION
        if found["link_gbps"] is None:
            return _needed(method, traffic, target)
        return _judged(method, traffic, target, found)
    except ValueError as error:  # of the simulation: "field: what is wrong"
        field, _, reason = str(error).partition(": ")
        raise UsageError(f"{FIELDS.get(field, '--' + field)}: {reason}") from error


def _traffic(found: Values, method: Method) -> Traffic:
    """What is exchanged, and over what."""
    from atoll_runtime.simulate.wan.traffic import Traffic

    if (found["params"] is None) == (found["model"] is None):
        raise UsageError("--params: either --params or --model is wanted, and not both")
    if found["step_time"] is None and found["link_gbps"] is None:
        raise UsageError(
            "--step-time: a time above 0 is wanted, such as 1 or 90s, unless --link-gbps is given"
        )
    traffic = Traffic(
        params=found["params"] or 1.0,
        step_seconds=found["step_time"] or 1.0,
        bits=found["bits"] or 16,
        sites=found["sites"] or 8,
        interval=found["interval"],
        fragments=found["fragments"],
        overlap=found["overlap"],
        layers=found["layers"],
        latency=found["latency"] or 0.0,
        shared=found["shared_link"],
    )
    return traffic if found["model"] is None else _of_model(found["model"], method, traffic)


def _of_model(preset: str, method: Method, traffic: Traffic) -> Traffic:
    from atoll_runtime.contract import PRESETS, ModelSpec
    from atoll_runtime.model import describe
    from atoll_runtime.model.presets import resolve
    from atoll_runtime.protocol.fragments import build_layout
    from atoll_runtime.simulate.wan.traffic import rounds, shares

    spec = ModelSpec(preset=values.choice("--model", preset, PRESETS))
    traffic = replace(traffic, layers=traffic.layers or resolve(spec).layers)
    layout = build_layout(describe(spec), rounds(method, traffic).fragments)
    return replace(traffic, params=layout.size, sizes=shares(layout))


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
    Column("step_seconds", "STEP s", as_gbps),
    Column("bits", "BITS", "{:g}".format),
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
LINK = (
    Column("link_utilization", "UTILIZATION", as_share),
    Column("hidden_step_seconds", "HIDDEN FROM s", as_gbps),
    Column("interval_reached", "REAL H", as_gbps),
    Column("speedup_data_parallel", "x DATA-PARALLEL", as_gbps),
    Column("speedup_diloco", "x DILOCO", as_gbps),
)


def _needed(method: Method, traffic: Traffic, target: float) -> Report:
    row = _case(method, traffic, target)
    notes = ["Gbit/s of one site's link, " + ("both directions." if traffic.shared else "in one direction.")]
    if row["gbps_peak"] < row["gbps_link"]:
        notes.append(
            f"PEAK is of one fragment's stream over its {row['overlap']} steps; several are on their way at "
            "once and the link must carry LINK."
        )
    return _report("Bandwidth that a site needs", CASE + NEED, [row], notes, traffic)


def _judged(method: Method, traffic: Traffic, target: float, found: Values) -> Report:
    from atoll_runtime.simulate.wan.link import hidden_step, outlook

    rows = []
    for gbps in found["link_gbps"]:
        held = traffic
        if found["step_time"] is None:
            # One site alone exchanges nothing; any step is hidden, so the given one stays.
            held = replace(traffic, step_seconds=hidden_step(method, traffic, gbps, target) or 1.0)
        view = asdict(outlook(method, held, gbps, target))
        view["link_utilization"] = view.pop("utilization")
        rows.append({"link_gbps": gbps, **_case(method, held, target), **view})
    hidden = "every fragment is there in time" if method == "decoupled" else as_share(target) + " compute"
    notes = [
        f"Hidden: {hidden}.",
        "Data-parallel and DiLoCo (H = 100) send bfloat16 over the same link.",
        "Published: 12B over 2-5 Gbit/s, more than 20 times faster than synchronous training.",
    ]
    columns = (Column("link_gbps", "LINK Gbit/s", as_gbps), *CASE, *LINK)
    return _report("What a link between sites allows", columns, rows, notes, traffic)


def _report(
    title: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], notes: list[str], traffic: Traffic
) -> Report:
    from atoll_cli.simulate.bandwidth_published import draw_case

    layers = rows[0]["layers"]
    if traffic.layers not in (None, layers):
        notes.append(
            f"Computed with {layers} layers, the same number in each fragment; the model has {traffic.layers}."
        )
    return Report(
        title, columns, tuple(rows), tuple(notes), lambda figure: draw_case(figure, traffic, rows[0])
    )
