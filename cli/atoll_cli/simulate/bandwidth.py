"""`atoll simulate bandwidth`: Gbit/s that a site needs, for one setting or beside the published figures."""

from __future__ import annotations

from dataclasses import asdict

from atoll_cli.arguments import Option, Values, choice, count, number, refuse, seconds
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Report

METHODS = ("data-parallel", "diloco", "streaming", "streaming-overlap", "decoupled")
UTILIZATION = 0.95
"""As in the published comparison of eight data centres."""

OPTIONS = (
    Option("--method", "M", choice(*METHODS), f"{', '.join(METHODS)}; without it, every published figure"),
    Option("--params", "N", number(1, 1e15), "parameters, such as 5B"),
    Option("--step-time", "S", seconds(1e6, least=1e-6), "of one step's compute"),
    Option("--bits", "B", number(0.01, 64), "of a parameter on the wire, 16"),
    Option("--sites", "M", count(2, 100_000), "8"),
    Option("--utilization", "U", number(1e-3, 0.9999),
           f"share of time that computes, {UTILIZATION}; decoupled learners never wait"),
    Option("--interval", "H", count(1, 10_000), "steps between two exchanges of a fragment; not for data-parallel"),
    Option("--fragments", "P", count(1, 1024), "of the model, at most H; not for data-parallel and diloco"),
    Option("--overlap", "T", count(1, 1024), "steps until a fragment is used, at most H; for streaming-overlap and "
        "decoupled"),
)  # fmt: skip
"""A method ignores the options that it does not use, so that a script can ask about all with the same ones."""


def answer(found: Values) -> Report:
    """Answer for one case, or return the published table. Raises `UsageError`."""
    from atoll_runtime.simulate.wan.bandwidth import need
    from atoll_runtime.simulate.wan.traffic import Method, Traffic, rounds

    method = found["method"]
    if method is None:
        given = [option.name.removeprefix("--") for option in OPTIONS[1:]]
        refuse(found, given, f"--method is wanted with it, one of {', '.join(METHODS)}")
        return _published()
    for name in ("params", "step_time"):
        if found[name] is None:
            raise UsageError(f"--{name.replace('_', '-')}: is wanted with --method {method}")
    share = found["utilization"] or UTILIZATION
    traffic = Traffic(
        params=found["params"],
        step_seconds=found["step_time"],
        bits=found["bits"] or 16,
        sites=found["sites"] or 8,
        interval=found["interval"],
        fragments=found["fragments"],
        overlap=found["overlap"],
    )
    schedule = rounds(Method(method), traffic)
    count(1, schedule.interval)("--fragments", str(schedule.fragments))
    count(1, schedule.interval)("--overlap", str(schedule.overlap or 1))
    row = {
        "method": method,
        **{name: getattr(traffic, name) for name in ("params", "step_seconds", "bits", "sites")},
        "utilization": 1.0 if method == Method.DECOUPLED else share,
        **asdict(schedule),
        **asdict(need(Method(method), traffic, share)),
    }
    note = (
        "Gbit/s of one site's link, in one direction. Peak is of one fragment's stream; several may be on their way at "
        "once, and the link must carry them."
    )
    return Report("Bandwidth that a site needs", tuple(row), (row,), notes=(note,))


def _published() -> Report:
    """Return a row for each figure. The notes summarise the errors."""
    from atoll_runtime.simulate.wan.published import DECOUPLED, GRID_RATIO, comparisons

    found = comparisons()
    signed = [each.grid_steps for each in found if each.grid_steps is not None]
    steps = [abs(step) for step in signed]
    errors = [100 * abs(each.error) for each in found if each.grid_steps is None]
    notes = (
        f"Table 4: {sum(step <= 1 for step in steps)} of {len(steps)} cells within one step of its grid "
        f"({100 * (GRID_RATIO - 1):.0f} %), mean distance {sum(steps) / len(steps):.2f}, largest "
        f"{max(steps):.2f}, mean with its sign {sum(signed) / len(signed):+.2f} steps.",
        f"Decoupled: mean error {sum(errors) / len(errors):.1f} %, largest {max(errors):.1f} %. "
        f"Taken: {DECOUPLED}.",
    )
    columns = (
        "figure",
        "utilization",
        "published",
        "published_most",
        "computed",
        "unit",
        "error",
        "grid_steps",
    )
    rows = tuple({key: getattr(each, key) for key in columns} for each in found)
    return Report("Bandwidth, published and computed", columns, rows, notes=notes)
