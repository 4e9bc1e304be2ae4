"""One host of a unit, run by test_learner_slices: two steps, then its part of each fragment, as JSON on stdout.

Argument: the unit's contract, as the operator writes it.
"""

import json
import sys

import numpy as np

from atoll_runtime.contract import Dimensions, InnerSpec, MeshSpec, ModelSpec, parse_unit
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import join, leave, local_range
from atoll_runtime.learner.snapshot import host_part
from atoll_runtime.model import describe, initial
from atoll_runtime.protocol.fragments import build_layout

SPEC = ModelSpec(dimensions=Dimensions(layers=1, width=16, heads=2, kv_heads=2, hidden=32, vocabulary=64))
LENGTH, FRAGMENTS = 12, 2


def main():
    unit = parse_unit(sys.argv[1])
    mesh = join(unit, MeshSpec())
    inner = Inner(mesh, SPEC, InnerSpec(), initial(SPEC), unit.batch, LENGTH)
    fragments = Fragments(mesh, build_layout(describe(SPEC), FRAGMENTS), inner.theta)
    random = np.random.default_rng(1)
    start, stop = inner.rows
    losses = []
    for _ in range(2):
        tokens = random.integers(0, 64, (unit.batch, LENGTH + 1)).astype(np.int32)
        losses.append(float(inner.step(tokens[start:stop], 1e-2)))
    parts = [
        host_part(*fragments.extract(inner.theta, number, "float32")).tolist() for number in range(FRAGMENTS)
    ]
    print(json.dumps({"devices": local_range(mesh), "rows": [start, stop], "losses": losses, "parts": parts}))
    leave()


if __name__ == "__main__":
    main()
