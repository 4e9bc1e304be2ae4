"""Current figures, read from the syncer's metrics. Those in a status may be half a minute old."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from atoll_cli.kubectl import Kubectl, KubectlError
from atoll_cli.views import Sample, UnitView
from atoll_runtime.contract import HEALTH_PORT

FIGURE = re.compile(r'^atoll_syncer_([a-z_]+)(?:\{unit="([^",]+)"\})? ([-+.e\d]+)$', re.MULTILINE)
SECONDS = 5.0
"""Time limit for one shard to answer through the API server."""
AT_ONCE = 8
Figures = dict[tuple[str, str], float]
"""Values by metric name without its prefix, and unit. The unit is empty for the syncer's own figures."""


def read_metrics(kubectl: Kubectl, pod: str) -> Figures | None:
    """Figures of one shard; None if it does not answer, or the user may not `get` `pods/proxy`."""
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}:{HEALTH_PORT}/proxy/metrics"
    try:
        text = kubectl.run("get", "--raw", path, timeout=SECONDS)
    except KubectlError:
        return None
    return {(name, unit): float(value) for name, unit, value in FIGURE.findall(text)}


def refreshed(kubectl: Kubectl, shards: int, sample: Sample) -> Sample:
    """Return the sample with fresh figures of the shards that answer. Steps and tokens are not below the status's."""
    pods = [f"{sample.run.name}-syncer-{shard}" for shard in range(shards)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda pod: read_metrics(kubectl, pod), pods))
    found = [figures for figures in answers if figures is not None]
    units = {name: _unit(unit, found) for name, unit in sample.units.items()}
    run = sample.run
    if found and len(found) == shards:  # the model is as far as its slowest shard
        step, tokens = (
            int(min(figures.get((name, ""), 0) for figures in found))
            for name in ("global_step", "merged_tokens_total")
        )
        run = replace(run, step=max(run.step, step), tokens=max(run.tokens, tokens))
    return replace(sample, run=run, units=units)


def _unit(unit: UnitView, found: Sequence[Figures]) -> UnitView:
    step = max((figures.get(("unit_step", unit.name), 0) for figures in found), default=0)
    key = "unit_staleness", unit.name
    staleness = max((figures[key] for figures in found if key in figures), default=unit.staleness)
    return replace(unit, step=int(max(unit.step, step)), staleness=int(staleness))
