"""How a unit came to its first step: told with each report, shown by the syncer."""

from __future__ import annotations

import msgspec
from lone_shard import LONE

from atoll_runtime.protocol.messages import Beginning, Report
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.protocol.units import Unit
from atoll_runtime.syncer.status import unit_report
from atoll_runtime.transport.wire import decode

BEGINNING = Beginning(joined=10.0, stepped=30.5, compiling=12.25, compiled=3, loaded=16)


def test_a_learner_of_before_this_field_is_understood() -> None:
    old = msgspec.msgpack.encode(
        {"type": "Report", "step": 1, "steps": 1, "tokens": 8, "loss": 5.0, "step_seconds": 0.1, "cursor": 8}
    )
    assert decode(old) == Report(1, 1, 8, 5.0, 0.1, 8)


def test_the_syncer_shows_it_of_a_unit() -> None:
    machine, unit = begin(LONE, (10,), [0]), Unit.new("a", (0,))
    shown = unit_report(machine, unit, Report(1, 1, 8, 5.0, 1.0, 8, BEGINNING)).beginning
    assert shown is not None
    assert (shown.joined, shown.stepped, shown.compiling) == (10.0, 30.5, 12.25)
    assert (shown.compiled, shown.loaded) == (3, 16)
    assert unit_report(machine, unit, None).beginning is None
