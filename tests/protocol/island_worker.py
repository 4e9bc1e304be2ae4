"""One host of a unit, run by test_learner_mesh: a fixed piece of training, its figures as JSON on stdout.

Arguments: the unit's contract, a folder for the units' saves.
"""

import json
import math
import sys
from pathlib import Path

import msgspec
import numpy as np

from atoll_runtime.checkpoint import GlobalStore, arrays
from atoll_runtime.checkpoint.units import UnitStore
from atoll_runtime.contract import Dimensions, InnerSpec, MeshSpec, ModelSpec, parse_unit
from atoll_runtime.learner import host_consensus, seed
from atoll_runtime.learner.audit import EXAMPLES, evaluation
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.island import of_first
from atoll_runtime.learner.mesh import join, leave, local_range
from atoll_runtime.learner.proposal import NOTHING
from atoll_runtime.learner.saver import Saver
from atoll_runtime.learner.snapshot import Snapshots, host_part
from atoll_runtime.model import axes_of, describe
from atoll_runtime.model.axes import share
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.simulate.blank import run_contract

SIZE = Dimensions(
    layers=2, width=16, heads=2, kv_heads=2, hidden=36, vocabulary=256, experts=2, expert_hidden=8
)
SPEC = ModelSpec(dimensions=SIZE)
ACROSS = MeshSpec(tensor=2, expert=2)
"""Of the unit of several hosts: heads are split over the devices of a host, experts over the hosts of a slice, and rows
over all hosts."""
LENGTH, FRAGMENTS = 12, 2


def scenario(mesh, unit, folder):
    """Four steps, every fragment out and half of it back in, two more steps, a save of the moments."""
    layout = build_layout(describe(SPEC), FRAGMENTS)
    inner = Inner(mesh, SPEC, InnerSpec(), seeded(mesh, layout, unit, folder), unit.batch, LENGTH)
    fragments = Fragments(mesh, layout, inner.theta)
    random = np.random.default_rng(1)
    start, stop = inner.rows

    def step():
        tokens = random.integers(0, 256, (unit.batch, LENGTH + 1)).astype(np.int32)
        rows = np.arange(start, stop) % unit.batch
        return float(inner.step(tokens[rows], 1e-2))

    losses = [step() for _ in range(4)]
    parts = []
    for number in range(FRAGMENTS):
        part = host_part(fragments.extract(inner.theta, number, "float32"))
        assert len(part) == fragments.bounds[number][1] - fragments.bounds[number][0]
        parts.append(part.tolist())
        inner.theta = fragments.receive(inner.theta, number, part / 2)
        again = host_part(fragments.extract(inner.theta, number, "float32"))
        assert not again.any(), "just received: θ is the anchor"
    losses += [step() for _ in range(2)]
    save(unit, folder, layout, inner, fragments, 6)
    seeds = list(healed(mesh, unit, folder, layout, inner, fragments)) if unit.hosts > 1 else []
    examples = random.integers(0, 256, (EXAMPLES, LENGTH + 1)).astype(np.int32)
    audit = float(evaluation(inner, layout, examples)(fragments.anchors))
    where = {"devices": local_range(mesh), "rows": inner.rows}
    return {"losses": losses, "parts": parts, "audit": audit, "healed": seeds, **where}


def seeded(mesh, layout, unit, folder):
    """Θ as this host reads it from a checkpoint: its own share, and NaN elsewhere."""
    axes = axes_of(SPEC)
    own = {name: share(mesh, axes[name], shape) for name, shape in layout.shapes.items()}
    if unit.hosts > 1:
        held = sum(math.prod(map(len, each)) for each in own.values())
        assert held < 0.51 * sum(math.prod(shape) for shape in layout.shapes.values())
    found = {name: np.full(shape, np.nan, np.float32) for name, shape in layout.shapes.items()}
    for name, value in GlobalStore(f"file://{folder}").load(0, momentum=False, own=own).theta.items():
        found[name][np.ix_(*own[name])] = value[np.ix_(*own[name])]
    return found


def healed(mesh, unit, folder, layout, inner, fragments):
    """Another unit is seeded twice, the second time when its last host has lost its part of the save: what this host
    says, and whether it has the moments."""
    seed.FIRST_WAIT = arrays.FIRST_WAIT = 0.01
    torn, agree, uri = unit.model_copy(update={"unit": "torn"}), Agreement(mesh), f"file://{folder}"
    save(torn, folder, layout, inner, fragments, 8)
    for lost in (False, True):
        agree.extremes(np.zeros(1, np.int32))  # all have saved, or read
        if lost and unit.host == unit.hosts - 1:
            for path in Path(folder, "units/torn/8", f"host-{unit.host}-of-{unit.hosts}", "d").iterdir():
                path.write_bytes(b"")
        units = UnitStore(uri, "1", "adamw(mu, nu)")
        found = seed.from_checkpoint(GlobalStore(uri), units, "torn", layout, agree)
        moments = (found.moments.mu, found.moments.nu) if found.moments else ()
        same = [
            np.array_equal(mine[name][shard.index], shard.data)
            for mine, theirs in zip(moments, inner.moments, strict=False)
            for name, value in theirs.items()
            for shard in value.addressable_shards
        ]
        yield found.message, len(same), all(same)


def save(unit, folder, layout, inner, fragments, cut):
    """This host's part, by its saver, which waits for no other host."""
    saver = Saver(UnitStore(f"file://{folder}", "1", "adamw(mu, nu)"), unit, layout)
    snapshots = Snapshots(fragments.bounds, (0,) * FRAGMENTS, saver.put)
    snapshots.record(cut, cut)
    while (number := snapshots.wanted((0,) * FRAGMENTS)) != NOTHING:
        snapshots.capture(number, 0, inner, fragments)
        snapshots.collect()
    saver.close(200)
    assert saver.saved


class Found(msgspec.Struct):
    text: str


def agreement(mesh, host):
    """What a host says after others have told it their values."""
    agree = Agreement(mesh)
    host_consensus.MOST_WORDS = 512  # so that small tensors share a collective and a large one takes several
    odd = {
        "x": np.array([[np.inf, -0.0], [1e-40, -1.5]], np.float32),
        "heat": np.float32(7),
        "none": np.empty(0),
    }
    odd = {name: np.asarray(value, np.float32) for name, value in odd.items()}
    odd["table"] = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    shapes = {name: value.shape for name, value in odd.items()}
    tensors = agree.tensors(shapes, odd if host == 0 else {})
    hosts = agree.place[1]
    rows = {"rows": np.zeros((hosts, 3), np.float32)}
    rows["rows"][host] = [-host, np.inf, 1 + host]
    rows = agree.tensors({"rows": (hosts, 3)}, rows)["rows"]
    found, rest = agree.found_by_first(lambda: (Found("from host 0"), "done"), Found)
    low, high = agree.extremes(np.array([host, -host], np.int32))
    changed, plain = run_contract(seed="Peer", audit=40, target={"tokens": 2**40}), run_contract()
    read = (changed, plain) if host == 0 else (plain, changed)
    return {
        "extremes": [low.tolist(), high.tolist()],
        "tensors": tensors["x"].view(np.int32).tolist(),
        "same": {name: np.array_equal(tensors[name], odd[name]) for name in tensors},
        "found": found.text,
        "rest": rest,
        "joined": rows.tolist(),
        "asked": [of_first(each, agree) == first for each, first in zip(read, (changed, plain), strict=True)],
    }


def main():
    unit, folder = parse_unit(sys.argv[1]), sys.argv[2]
    mesh = join(unit, ACROSS if unit.hosts > 1 else MeshSpec())
    told = scenario(mesh, unit, folder) | agreement(mesh, unit.host)
    leave()  # before it prints, which may wait until the test reads it
    print(json.dumps(told))


if __name__ == "__main__":
    main()
