"""Determines where an incarnation begins: from the shards' answers or, without any, from its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll_runtime.payloads import Cut
from atoll_runtime.transport.messages import Welcome

if TYPE_CHECKING:  # simulations run without JAX
    from atoll_runtime.learner.host_consensus import Agreement

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """Where an incarnation begins."""

    versions: tuple[int, ...]
    """The version of each fragment that it holds."""
    targets: tuple[int, ...]
    """The version of each fragment that it must hold before its state is useful to others."""
    global_step: int = 0
    inner_step: int = 0
    cursor: int = 0
    """Sequences of the unit's stream that are consumed."""
    merged: int = 0
    """Tokens, of all units of the run."""
    cold: bool = False
    """It continues from a trained model with moments of zero."""


def start_of(
    welcome: Welcome | None, agreement: Agreement, cut: Cut, run_uid: str, unit: str, cold: bool
) -> Start:
    """Host 0's answer from the syncer, on every host; without one, what a checkpoint of this run says of the unit."""

    def begin() -> tuple[Start, None]:
        if welcome is not None:
            known = welcome.global_step, welcome.inner_step, welcome.cursor, welcome.merged
            return Start(cut.versions, welcome.versions, *known), None
        log.warning("no answer from the syncer: training on from step %d, the link follows", cut.step)
        machines = cut.meta.get("machines", []) if cut.meta.get("run_uid") == run_uid else []
        records = [machine.get("units", {}).get(unit, {}) for machine in machines]
        step, cursor = (
            max((record.get(name, 0) for record in records), default=0)
            for name in ("merged_step", "merged_cursor")
        )
        merged = max(map(_merged, machines), default=0)
        return Start(cut.versions, cut.versions, cut.step, step, cursor, merged), None

    start, _ = agreement.found_by_first(begin, Start)
    return replace(start, cold=cold and start.global_step > 0)


def _merged(machine: Mapping[str, Any]) -> int:
    """Tokens that a shard had merged when it recorded this state."""
    accounts = [record["account"] for record in machine.get("units", {}).values() if "account" in record]
    owned = max((len(account["owned"]) for account in accounts), default=0)
    return sum(int(account["merged"]) for account in accounts) // max(owned, 1)
