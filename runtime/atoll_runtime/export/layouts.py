"""The layouts that Θ can be written in, by name."""

from __future__ import annotations

from collections.abc import Callable

from atoll_runtime.contract import ModelSpec
from atoll_runtime.export.entries import Entry, Plan, Shapes
from atoll_runtime.export.hugging_face import llama, qwen2_moe


def plain(_: ModelSpec, found: Shapes) -> Plan:
    """Atoll's own: Θ as it is, by flat name, layers stacked. Any model, a user's own task too."""
    return Plan(tuple(Entry(name, shape, name) for name, shape in found.items()))


LAYOUTS: dict[str, Callable[[ModelSpec, Shapes], Plan]] = {
    "atoll": plain,
    "llama": llama,
    "qwen2-moe": qwen2_moe,
}
"""Each raises `ExportError` for a model that it cannot express."""
