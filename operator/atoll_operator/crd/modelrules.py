"""CEL rules of a model: that a decoder can be built, split over the chips of a unit, and cut into fragments.

What can be done with a task only its own code knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from atoll_operator.crd.cel import Rule, rule
from atoll_operator.crd.schema import Schema
from atoll_runtime.contract import OPTIMIZERS, PRESETS, SIZES, Dimensions

OF_A_LAYER, OF_ITS_EXPERTS, OF_ALL = 9, 4, 2
"""Pieces: the tensors of a layer, those of its experts, the embedding and the last norm; a head of its own is one."""
PRESET = "self.model.preset"


def constrain_model(model: Schema) -> None:
    """`model` of a run."""
    parts = model["properties"]
    parts["preset"]["enum"] = list(PRESETS)
    model["x-kubernetes-validations"] = [
        rule(
            "[has(self.preset), has(self.dimensions), has(self.task)].filter(given, given).size() == 1",
            "exactly one of preset, dimensions and task must be given",
        )
    ]
    parts["dimensions"]["x-kubernetes-validations"] = [
        rule(
            "self.heads < 1 || self.width % (2 * self.heads) == 0",
            "width must be an even multiple of heads",
            "width",
        ),
        rule(
            "self.kvHeads < 1 || self.heads % self.kvHeads == 0",
            "heads must be a multiple of kvHeads",
            "heads",
        ),
        rule(
            "(self.experts == 0) == (self.expertHidden == 0)",
            "is needed with experts, and only then",
            "expertHidden",
        ),
        rule(
            "self.experts == 0 || self.expertsPerToken <= self.experts",
            "expertsPerToken must be at most experts",
            "expertsPerToken",
        ),
    ]


def constrain_inner(inner: Schema) -> None:
    """`inner` of a run."""
    inner["properties"]["optimizer"]["properties"]["name"]["enum"] = list(OPTIMIZERS)


def pieces(size: Dimensions) -> int:
    """What a decoder of this size can be cut into."""
    of_a_layer = OF_A_LAYER + (OF_ITS_EXPERTS if size.experts else 0)
    return size.layers * of_a_layer + OF_ALL + (not size.tied)


def model_rules() -> Iterator[Rule]:
    """Of a run's spec: what depends on the model's size."""
    common = {
        name: math.gcd(size.heads, size.kv_heads, size.hidden, size.expert_hidden)
        for name, size in SIZES.items()
    }
    experts = {name: max(size.experts, 1) for name, size in SIZES.items()}
    size, mesh = "self.model.dimensions", "self.inner.mesh"
    for axis, numbers, what in (
        ("tensor", common, "heads, kvHeads and hidden"),
        ("expert", experts, "the experts, or 1 where there are none,"),
    ):
        divides = f"{mesh}.{axis} < 1 || n % {mesh}.{axis} == 0"
        yield _of_preset(f"inner.mesh.{axis}", divides, f"divide {what}", numbers)
    split = ", ".join(f"{size}.{name}" for name in ("heads", "kvHeads", "hidden", "expertHidden"))
    yield rule(
        f"!has({size}) || {mesh}.tensor < 1 || [{split}].all(length, length % {mesh}.tensor == 0)",
        "inner.mesh.tensor must divide heads, kvHeads, hidden and expertHidden of model.dimensions",
        "inner.mesh.tensor",
    )
    yield rule(
        f"!has({size}) || {mesh}.expert <= 1 || ({size}.experts > 0 && {size}.experts % {mesh}.expert == 0)",
        "inner.mesh.expert must divide experts of model.dimensions, and be 1 without experts",
        "inner.mesh.expert",
    )
    cut = {name: pieces(size) for name, size in SIZES.items()}
    of_a_layer = f"({size}.experts > 0 ? {OF_A_LAYER + OF_ITS_EXPERTS} : {OF_A_LAYER})"
    most = f"{size}.layers * {of_a_layer} + ({size}.tied ? {OF_ALL} : {OF_ALL + 1})"
    for field in ("outer.fragments", "syncer.shards"):
        yield _of_preset(field, f"self.{field} <= n", "be at most the pieces", cut)
        yield rule(
            f"!has({size}) || self.{field} <= {most}",
            f"{field} must be at most the pieces of the model: {OF_A_LAYER} of each layer of model.dimensions "
            f"({OF_A_LAYER + OF_ITS_EXPERTS} with experts) and {OF_ALL} besides ({OF_ALL + 1} where not tied)",
            field,
        )


def _of_preset(field: str, fits: str, message: str, numbers: Mapping[str, int]) -> Rule:
    """Of a model by its preset: whether a field fits, by the preset's number `n`. A message's cost must be bounded."""
    of = ", ".join(f"'{name}': {number}" for name, number in numbers.items())
    said = {
        number: [name for name, same in numbers.items() if same == number]
        for number in sorted(set(numbers.values()))
    }
    right = "; ".join(f"{number} for {', '.join(names)}" for number, names in said.items())
    return rule(
        f"!has({PRESET}) || [{{{of}}}].all(of, !({PRESET} in of) || [of[{PRESET}]].all(n, {fits}))",
        f"{field} must {message} of model.preset: {right}",
        field,
    )
