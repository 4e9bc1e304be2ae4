"""One process of a unit, run by test_learner_mesh: a fixed piece of training, its figures as JSON on stdout.

Arguments: hosts, host, coordinator, then the numbers of devices of the meshes to run on.
"""

import json
import sys

import jax
import numpy as np

from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec, UnitContract
from atoll_runtime.learner.agree import Agreement
from atoll_runtime.learner.fragments import Fragments, host_part, wire_type
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import join, leave, span
from atoll_runtime.model import describe, initial
from atoll_runtime.sync.fragments import build_layout

SPEC = ModelSpec(dimensions=Dimensions(layers=2, width=16, heads=2, kv_heads=1, hidden=36, vocabulary=256))
BATCH, LENGTH, FRAGMENTS = 6, 12, 2


def scenario(mesh):
    """Four steps, every fragment out and half of it back in, two more steps."""
    layout = build_layout(describe(SPEC), FRAGMENTS)
    inner = Inner(mesh, InnerSpec(), initial(SPEC), BATCH, LENGTH)
    fragments = Fragments(mesh, layout, wire_type("float32"), inner.theta)
    random = np.random.default_rng(1)
    start, stop = inner.rows

    def step():
        tokens = random.integers(0, 256, (BATCH, LENGTH + 1)).astype(np.int32)
        rows = np.arange(start, stop) % BATCH
        return float(inner.step(tokens[rows], 1e-2))

    losses = [step() for _ in range(4)]
    sums = []
    for number in range(FRAGMENTS):
        part = host_part(fragments.extract(inner.theta, number))
        assert len(part) == fragments.bounds[number][1] - fragments.bounds[number][0]
        sums.append(float(np.abs(part).sum()))
        inner.theta = fragments.receive(inner.theta, number, part / 2)
        again = host_part(fragments.extract(inner.theta, number))
        assert not again.any(), "just received: θ is the anchor"
    losses += [step() for _ in range(2)]
    return {"losses": losses, "sums": sums}


def agreement(mesh, host):
    """What a round of `extremes` and one of `from_first` say."""
    agree = Agreement(mesh)
    low, high = agree.extremes(np.array([host, -host], np.int32))
    return {
        "extremes": [low.tolist(), high.tolist()],
        "first": agree.from_first(np.array([2**40 + host, -1], np.int64)).tolist(),
    }


def main():
    hosts, host, coordinator, *sizes = sys.argv[1:]
    unit = UnitContract(
        unit="u",
        incarnation=1,
        host=host,
        hosts=hosts,
        coordinator=coordinator,
        batch=BATCH,
        stream=0,
        streams=1,
    )
    whole = join(unit)
    meshes = [whole] if unit.hosts > 1 else [span(jax.devices()[: int(size)]) for size in sizes]
    result = [scenario(mesh) for mesh in meshes]
    print(json.dumps({"runs": result, "agreement": agreement(meshes[-1], unit.host)}))
    leave()


if __name__ == "__main__":
    main()
