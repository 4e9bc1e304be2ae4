"""Options of `atoll simulate bandwidth`: from text to the traffic of a method."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll_cli import values
from atoll_cli.errors import UsageError

if TYPE_CHECKING:
    from atoll_runtime.simulate.wan.traffic import Method, Traffic

METHODS = ("data-parallel", "diloco", "streaming", "streaming-overlap", "decoupled")

UTILIZATION = 0.95
"""As in the published comparison of eight data centres."""

CASE_OPTIONS = (
    "params", "model", "step-time", "bits", "sites", "utilization", "interval", "fragments", "overlap",
    "layers", "latency", "shared-link", "link-gbps",
)  # fmt: skip
"""Options that describe a case, and so need a method."""

UNUSED = {
    "data-parallel": ("interval", "fragments", "overlap"),
    "diloco": ("fragments", "overlap"),
    "streaming": ("overlap",),
    "streaming-overlap": (),
    "decoupled": ("utilization",),
}
"""Options that a method has no use for: what is exchanged whole is not cut, what waits hides nothing."""


def refuse_unused(options: argparse.Namespace, method: Method) -> None:
    """Raises `UsageError`: an option that the answer would not depend on."""
    for name in UNUSED[method]:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: not with --method {method}, whose answer does not depend on it")


def read_traffic(options: argparse.Namespace, method: Method) -> Traffic:
    """What is exchanged, and over what; raises `UsageError`."""
    from atoll_runtime.simulate.wan.traffic import Traffic

    if (options.params is None) == (options.model is None):
        raise UsageError("--params: either --params or --model is wanted, and not both")
    if options.step_time is None and options.link_gbps is None:
        raise UsageError(
            "--step-time: a time above 0 is wanted, such as 1 or 90s, unless --link-gbps is given"
        )

    def whole(name: str, most: int, least: int = 1) -> int | None:
        text = getattr(options, name)
        return None if text is None else values.count(f"--{name}", text, least, most)

    traffic = Traffic(
        params=1.0 if options.params is None else values.number("--params", options.params, 1, 1e15),
        step_seconds=1.0
        if options.step_time is None
        else values.seconds("--step-time", options.step_time, 1e6),
        bits=16 if options.bits is None else values.number("--bits", options.bits, 0, 64, above=True),
        sites=whole("sites", 100_000) or 8,
        interval=whole("interval", 100_000),
        fragments=whole("fragments", 1024),
        overlap=whole("overlap", 1024, 0),
        layers=whole("layers", 1024),
        latency=0.0 if options.latency is None else values.number("--latency", options.latency, 0, 3600),
        shared=options.shared_link,
    )
    return traffic if options.model is None else _of_model(options.model, method, traffic)


def _of_model(preset: str, method: Method, traffic: Traffic) -> Traffic:
    from atoll_runtime.contract import PRESETS, ModelSpec
    from atoll_runtime.model import describe
    from atoll_runtime.model.presets import resolve
    from atoll_runtime.simulate.wan.traffic import rounds, shares
    from atoll_runtime.sync.fragments import build_layout

    spec = ModelSpec(preset=values.choice("--model", preset, PRESETS))
    traffic = replace(traffic, layers=traffic.layers or resolve(spec).layers)
    layout = build_layout(describe(spec), rounds(method, traffic).fragments)
    return replace(traffic, params=layout.size, sizes=shares(layout))
