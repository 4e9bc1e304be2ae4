"""The summary for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll_cli.text import loss, seconds, table


def render(found: Mapping[str, Any]) -> str:
    """Return a table and the verdict. `found` is the result of `judge`."""
    others = ", ".join(f"{name} {steps}" for name, steps in found["stepsOfOthers"].items())
    by_operator = seconds(found["healSecondsOperator"])
    faults = [
        f"{fault['kind']} {fault['victim']} after {seconds(fault['healedAt'] - fault['at'])}"
        for fault in found["faults"]
    ]
    rows = [
        (
            "killed",
            f"{found['victim']}, incarnation {found['incarnationBefore']} → {found['incarnationAfter']}",
        ),
        ("time to heal", f"{seconds(found['healSeconds'])} (by the operator's clock {by_operator})"),
        ("all that was healed", ", ".join(faults)),
        ("seeded from", "-" if found["seededStep"] is None else f"global step {found['seededStep']}"),
        ("steps of the others", others or "-"),
        ("pods of the others", "the same" if found["podsKept"] else "replaced"),
        (
            "training loss",
            f"first {loss(found['lossFirst'])}, at the kill {loss(found['lossAtKill'])}, "
            f"after the heal {loss(found['lossAfterHeal'])}, last {loss(found['lossLast'])}",
        ),
        (
            "held-out loss",
            f"untrained {loss(found['heldOutUntrained'])}, trained {loss(found['heldOutTrained'])}: "
            f"better by {found['margin']:.3f} nats per token on {found['heldOutTokens']:,} tokens "
            f"(wanted: {found['marginWanted']:g})",
        ),
        ("run", f"step {found['globalStep']} of {found['targetStep']}, {found['tokens']:,} tokens merged"),
        ("checkpoint", found["checkpoint"] or "-"),
        ("stages", ", ".join(f"{name} {seconds(value)}" for name, value in found["timings"].items())),
    ]
    verdict = [f"did not happen: {failure}" for failure in found["failures"]] or ["all of it happened"]
    return "\n".join(["", table(("SUMMARY", ""), rows), "", *verdict])
