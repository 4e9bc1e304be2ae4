"""What a knob costs in quality, by the published ablations: points of the text average (arXiv 2604.21428).

They are of 2B to 5B models; of what lies between their points nothing is known but the order.
"""

from __future__ import annotations

import math

from atoll_runtime.simulate.planner.run import Run

DOUBLING = 0.9
"""M=8 → M=16: 55.4 → 54.5 with RDA. The paper recovers it with a larger token budget. Up to 8 nothing is lost."""
FREE_UNITS = 8
ABLATED_UNITS = 16
"""Beyond it the same loss for each further doubling is an extrapolation."""
ALONE = 3.0
"""K=M → K=1 without grace, on units of unequal speed: 54.4 → 51.4. With the adaptive grace K=1 is 55.3."""
CODEC = {"float32": 0.0, "bf16": 0.0, "int8": 0.1, "int4": 0.1}
"""bf16 → int4: 55.4 → 55.3; int8 loses no more."""


def points_lost(run: Run) -> float:
    """Of the text average; 0 for the published setting, M=8, K=1 with grace, bf16."""
    units = DOUBLING * max(0.0, math.log2(run.units / FREE_UNITS))
    unsure = 0.0 if run.grace or run.units == 1 else (run.units - run.quorum) / (run.units - 1)
    return units + ALONE * unsure + CODEC[run.codec]
