"""The summary for people."""

from __future__ import annotations

from collections.abc import Mapping

from atoll_cli.demo.verdict import Summary
from atoll_cli.text import loss, seconds, table


def render(summary: Summary, timings: Mapping[str, float]) -> str:
    """A few lines, and the verdict."""
    others = ", ".join(f"{name} {steps}" for name, steps in summary.steps_of_others.items())
    by_operator = seconds(summary.heal_seconds_operator)
    faults = [
        f"{fault['kind']} {fault['victim']} after {seconds(fault['healedAt'] - fault['at'])}"
        for fault in summary.faults
    ]
    rows = [
        (
            "killed",
            f"{summary.victim}, incarnation {summary.incarnation_before} → {summary.incarnation_after}",
        ),
        ("time to heal", f"{seconds(summary.heal_seconds)} (by the operator's clock {by_operator})"),
        ("all that was healed", ", ".join(faults)),
        ("seeded from", f"global step {summary.seeded_step}" if summary.seeded_step is not None else "-"),
        ("steps of the others", others or "-"),
        ("pods of the others", "the same" if summary.pods_kept else "replaced"),
        (
            "training loss",
            f"first {loss(summary.loss_first)}, at the kill {loss(summary.loss_at_kill)}, "
            f"after the heal {loss(summary.loss_after_heal)}, last {loss(summary.loss_last)}",
        ),
        (
            "held-out loss",
            f"untrained {loss(summary.held_out_untrained)}, trained {loss(summary.held_out_trained)}: "
            f"better by {summary.margin:.3f} nats per token on {summary.held_out_tokens:,} tokens "
            f"(wanted: {summary.margin_wanted:g})",
        ),
        ("run", f"step {summary.global_step} of {summary.target_step}, {summary.tokens:,} tokens merged"),
        ("checkpoint", summary.checkpoint or "-"),
        ("stages", ", ".join(f"{name} {seconds(value)}" for name, value in timings.items())),
    ]
    verdict = [f"did not happen: {failure}" for failure in summary.failures] or ["all of it happened"]
    return "\n".join(["", table(("SUMMARY", ""), rows), "", *verdict])
