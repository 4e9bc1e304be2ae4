"""Beyond the paper: what raises goodput where it is published as 88 %, at 1.2M chips in 8 learners, and its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from atoll_runtime.simulate.fleet.goodput import Case, Estimate, estimate
from atoll_runtime.simulate.fleet.setting import (
    DAY,
    SEED_GBPS,
    Fleet,
    Heal,
    Method,
    Recovery,
    seeding_seconds,
)
from atoll_runtime.simulate.wan.bandwidth import need
from atoll_runtime.simulate.wan.traffic import Method as Exchange
from atoll_runtime.simulate.wan.traffic import Traffic

CHIPS = 1_200_000
PARAMETERS = 5e9
"""The paper's failure study."""
LEARNERS = (8, 16, 32, 64, 128)
"""8 is published. Quality was published up to 16, where it needs more tokens; beyond that it is not known."""

READINGS: Mapping[str, Recovery] = {
    "patient": Recovery(),
    "eager": Recovery(notice=3.5, pause=13.5, patience=3.5, repair=69.0),
}
"""Two sets of constants that reproduce the published table alike (mean error 1 point, largest 3): in one a slice
that is back waits for company, in the other it joins at once and a pause is shorter. The table cannot tell them
apart, and a policy is worth what both say."""

IN_PLACE = 10.0
"""Seconds until the containers of healthy hosts run again, and their accelerators are open. Assumed."""
SPARES = 1
"""Slices of each learner: at these rates one is enough."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One way to run the chips."""

    name: str
    method: Method = "decoupled"
    learners: int = 8
    spares: int = 0
    heal: Heal = field(default_factory=Heal)
    in_place: float | None = None
    patience: float | None = None
    pause_share: float = 1.0
    """Of the calibrated pause."""
    what_if: bool = False
    """A bound: no design that is known to do it, or not after every interruption."""

    def case(self, recovery: Recovery, seconds: float, seed: int, repeats: int) -> Case:
        """This policy under one reading of the constants."""
        return Case(
            fleet=Fleet(chips=CHIPS, learners=self.learners, spare_slices=self.spares),
            method=self.method,
            recovery=replace(
                recovery,
                pause=recovery.pause * self.pause_share,
                patience=self.patience or recovery.patience,
                in_place=self.in_place,
            ),
            heal=self.heal,
            seconds=seconds,
            seed=seed,
            repeats=repeats,
        )


PEER = Heal(restore=seeding_seconds(PARAMETERS, SEED_GBPS["peer"]), catch_up=0.0)

POLICIES: tuple[Policy, ...] = (
    Policy(name="as published"),
    Policy(name="a slice that is back waits for the next loss", patience=DAY),
    Policy(name="warm spare", spares=SPARES),
    Policy(name="pause halved", pause_share=0.5, what_if=True),
    Policy(name="in place", in_place=IN_PLACE, what_if=True),
    *(Policy(name="smaller learners", learners=learners) for learners in LEARNERS[1:]),
    *(
        Policy(
            name=name,
            method="unit",
            learners=learners,
            heal=heal,
            spares=spares,
            in_place=in_place,
            what_if=what_if,
        )
        for name, heal, spares, in_place, what_if in (
            ("unit re-created", Heal(), 0, None, False),
            ("unit, peer seed", PEER, 0, None, False),
            ("unit, peer seed, warm spare", PEER, SPARES, None, False),
            ("unit, peer seed, in place", PEER, 0, IN_PLACE, True),
        )
        for learners in LEARNERS
    ),
)
"""Learners that are elastic inside, as published, and units that are re-created whole, as Atoll makes them."""


@dataclass(frozen=True)
class PolicyRow:
    """What one policy gives and costs; `estimate` has the chip-hours a day by cause."""

    policy: Policy
    estimate: Estimate
    eager: Estimate
    """Under the other reading of the constants."""
    extra_chips: float
    gbps: float
    """Into the syncer from all learners together: bf16, one second a step, P=H=24, τ=2."""


def cases(seconds: float = DAY, seed: int = 0, repeats: int = 8) -> list[Case]:
    """Every policy under both readings, on equal luck."""
    return [
        policy.case(recovery, seconds, seed, repeats) for policy in POLICIES for recovery in READINGS.values()
    ]


def compare(asked: Sequence[Case], workers: int | None = None) -> list[PolicyRow]:
    """What became of `cases`, a row for each policy."""
    estimates = iter(estimate(asked, workers))
    return [
        PolicyRow(
            policy,
            one := next(estimates),
            next(estimates),
            one.allocated_chips - CHIPS,
            policy.learners * _link(policy.learners),
        )
        for policy in POLICIES
    ]


def finding(rows: Sequence[PolicyRow]) -> tuple[str, ...]:
    """What the rows say, judged by the lower of the two readings, without the what-ifs."""
    first, real = rows[0], [row for row in rows[1:] if not row.policy.what_if]

    def sure(row: PolicyRow) -> float:
        return min(row.estimate.goodput, row.eager.goodput)

    def words(row: PolicyRow) -> str:
        goodput = f"{row.estimate.goodput:.1%} (eager: {row.eager.goodput:.1%})"
        return f"{row.policy.name}, M={row.policy.learners}: {goodput}, {row.extra_chips:,.0f} more chips"

    def best(learners: int) -> str:
        return words(max((row for row in real if row.policy.learners <= learners), key=sure))

    level = [row for row in real if row.policy.method == "unit" and sure(row) >= first.estimate.goodput]
    return (
        f"Published policy: {words(first)}. The best at M=8: {best(8)}. The best up to M=16, whose quality is "
        f"published: {best(16)}. At any M: {best(max(LEARNERS))}.",
        "Units that are re-created whole "
        + (f"reach it with {words(min(level, key=_effort))}." if level else "stay below it."),
        "A smaller unit loses fewer chips to an interruption; its price is the syncer's traffic, which grows with M.",
    )


def _effort(row: PolicyRow) -> tuple[int, float]:
    """Fewer units first, then fewer chips."""
    return row.policy.learners, row.extra_chips


def _link(learners: int) -> float:
    return need(
        Exchange.DECOUPLED, Traffic(params=PARAMETERS, step_seconds=1.0, bits=16, sites=learners)
    ).gbps_link
