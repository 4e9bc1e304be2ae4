"""One process of a unit, run by test_compilation_cache: some steps with fragments going out and in, as JSON on stdout.

Arguments: the unit's contract, a folder for the bucket.
"""

import json
import sys
from pathlib import Path

import numpy as np
from jax import monitoring

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.contract import Dimensions, InnerSpec, MeshSpec, ModelSpec, parse_unit
from atoll_runtime.learner.compilation import CompilationStore, Programs
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import join, leave
from atoll_runtime.learner.snapshot import host_part
from atoll_runtime.model import describe, initial
from atoll_runtime.protocol.fragments import build_layout

SPEC = ModelSpec(dimensions=Dimensions(layers=2, width=16, heads=2, kv_heads=2, hidden=36, vocabulary=256))
"""Dense: of a sort, which experts need, XLA cannot write down a program for CPUs (jaxlib 0.10)."""
MESH = MeshSpec(tensor=2)
"""Collectives of several groups: heads over the devices of each host, data over the hosts."""
LENGTH, FRAGMENTS, STEPS = 12, 2, 12


def main():
    unit, folder = parse_unit(sys.argv[1]), sys.argv[2]
    compilations = []

    def listen(event, _, **facts):
        if event.endswith("backend_compile_duration"):
            compilations.append(str(facts.get("fun_name", "")))

    monitoring.register_event_duration_secs_listener(listen)
    bucket = Bucket(f"file://{folder}/bucket")
    store = CompilationStore(bucket, Path(folder) / f"trial-{unit.host}", "versions", "shape", unit.host)
    mesh = join(unit, MESH)
    agreement = Agreement(mesh)
    programs = Programs(agreement, store)
    layout = build_layout(describe(SPEC), FRAGMENTS)
    inner = Inner(mesh, SPEC, InnerSpec(), initial(SPEC), unit.batch, LENGTH, programs=programs)
    fragments = Fragments(mesh, layout, inner.theta, programs)
    start, stop = inner.rows
    tokens = np.random.default_rng(1).integers(0, 256, (unit.batch, LENGTH + 1)).astype(np.int32)
    losses = []
    for number in range(STEPS):
        agreement.extremes(np.array([number, unit.host], np.int32))
        which = number % FRAGMENTS
        delta = fragments.extract(inner.theta, which, "float32")
        fragments.capture(inner.moments, which)
        loss = inner.step(tokens[np.arange(start, stop) % unit.batch], 1e-2)
        part = host_part(delta)
        losses.append(float(loss).hex())
        if number == 0:
            programs.settle()
        if number == 5:
            inner.theta = fragments.receive(inner.theta, which, part * 0 + 0.02)
    leave()
    store.close(60)
    counts = {"loaded": programs.loaded, "compiled": programs.compiled}
    print(json.dumps({"losses": losses, "backend": compilations, **counts}))


if __name__ == "__main__":
    main()
