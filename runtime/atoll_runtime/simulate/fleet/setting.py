"""What is simulated: a fleet, how it recovers, and the one set of constants for every published figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["rigid", "elastic", "decoupled", "unit"]
"""rigid, elastic: one data-parallel learner. decoupled: learners that are each elastic. unit: learners as Atoll
makes them, which lose a slice, are re-created whole and seeded, while the others train."""

YEAR = 31_557_600.0
"""Seconds. The published mean time between interruptions of a chip is one year."""
DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Chips in equal learners, each in equal slices; interruptions are exponential and hit chips alike."""

    chips: int
    """Over all learners."""
    learners: int = 1
    mtbi_seconds: float = YEAR
    """Mean time between interruptions of one chip."""
    slice_chips: int = 256
    """What one interruption takes away: the largest slice of a v5e or v6e. At one year between interruptions
    its size hardly counts: 256 chips that are away for a minute are 0.05 % of the time."""
    quorum: int = 1
    """K."""

    @property
    def learner_chips(self) -> float:
        return self.chips / self.learners

    @property
    def slices(self) -> int:
        """Of one learner; its chips are shared evenly among them."""
        return max(1, round(self.learner_chips / self.slice_chips))


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a learner meets an interruption, in seconds. `Recovery()` reproduces the published table.

    The paper gives none of these times. `pause`, `patience` and `repair` are calibrated on three of its cells
    (`published.CALIBRATED`), one each, and rounded; `notice` is assumed; every other cell is a prediction.
    """

    notice: float = 2.0
    """An interruption is acted upon so long after it is known, and training goes on until then. Interruptions are
    maintenance and pre-emption as well as crashes: two steps of a second, to end the one and agree on the other.
    With 0, a plain crash, and the others calibrated anew, the mean error of the table is 1.2 points, not 0.9."""
    pause: float = 23.0
    """A learner stops so long to take slices out, in, or both at once. From the elastic cell at 2.4M chips, where
    a learner does little else. Gemini 2.5 reports tens of seconds for an interruption with slice-granular
    elasticity; here one costs between one pause and two."""
    patience: float = 260.0
    """A slice that is back waits at most so long for other changes to share their pause. From the cell of M=8 at
    1.2M chips. It never waits for more chip-time than a pause of its own would cost."""
    repair: float = 55.0
    """From an interruption until the slice, or another in its place, is back. From the rigid cell at 1.2M
    chips, where all wait for it. Far below a reboot: the published rigid row leaves room for no more."""


@dataclass(frozen=True, kw_only=True)
class Heal:
    """The time-line of a unit that is re-created whole, in seconds. Assumed, until measured on real slices.

    Between `schedule` and `start` it waits for hardware (`Recovery.repair`).
    """

    detect: float = 2.0
    """Pod failure to the operator's decision. A hang or a lost node takes longer."""
    schedule: float = 3.0
    """New pods are created and bound."""
    pull: float = 0.0
    """The image, where the hardware has none yet."""
    start: float = 20.0
    """Containers from an image at hand, the accelerator runtime, the mesh, the compiled step from its cache."""
    restore: float = 15.0
    """The state of 5B parameters from a bucket, at 32 Gbit/s."""
    catch_up: float = 2.0
    """Newer fragments from the syncer: about τ steps of a second."""
    unmerged: float = 13.0
    """Work that dies with the unit: a fragment was last sent (H+1)/2 steps ago on average (H=24, 1 s)."""
