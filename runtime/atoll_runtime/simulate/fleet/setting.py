"""The input of the simulation: a fleet, its recovery, and the same constants for every published figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["rigid", "elastic", "decoupled", "unit"]
"""rigid, elastic: one data-parallel learner. decoupled: several learners, each elastic. unit: Atoll's learners. One
that loses a slice is re-created whole and seeded while the others train."""

YEAR = 31_557_600.0
"""Seconds. The published mean time between interruptions of a chip is one year."""
DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Chips in equal learners of equal slices. Interruptions are exponential and equally likely for all chips."""

    chips: int
    """Over all learners."""
    learners: int = 1
    mtbi_seconds: float = YEAR
    """Mean time between interruptions of one chip."""
    slice_chips: int = 256
    """Chips that one interruption removes: the largest slice of a v5e or v6e. At one year between interruptions the
    size hardly matters: 256 chips that are away for a minute are 0.05 % of the time."""
    quorum: int = 1
    """K."""

    @property
    def learner_chips(self) -> float:
        return self.chips / self.learners

    @property
    def slices(self) -> int:
        """Slices of one learner, which divide its chips evenly."""
        return max(1, round(self.learner_chips / self.slice_chips))


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a learner handles an interruption, in seconds. `Recovery()` reproduces the published table.

    The paper gives none of these times. `pause`, `patience` and `repair` are calibrated on three of its cells
    (`published.CALIBRATED`), one each, and rounded; `notice` is assumed; every other cell is a prediction.
    """

    notice: float = 2.0
    """From the notice of an interruption until the learner acts on it. Training continues until then. Interruptions
    include maintenance and pre-emption as well as crashes. The value is two steps of a second: one to end, one to
    agree. With 0, a crash, and the others calibrated again, the mean error of the table is 1.2 points, not 0.9."""
    pause: float = 23.0
    """A learner's stop to take slices out, in, or both at once. Calibrated on the elastic cell at 2.4M chips, where a
    learner does little else. Gemini 2.5 reports tens of seconds for an interruption with slice-granular
    elasticity; here an interruption costs between one pause and two."""
    patience: float = 260.0
    """The longest wait of a returned slice for other changes, to share their pause. Calibrated on the cell of M=8 at
    1.2M chips. A slice never waits for more chip-time than its own pause would cost."""
    repair: float = 55.0
    """From an interruption until the slice, or a replacement, is back. Calibrated on the rigid cell at 1.2M chips,
    where all wait for it. It is far shorter than a reboot, because the published rigid row leaves no room for more."""


@dataclass(frozen=True, kw_only=True)
class Heal:
    """The time-line of a unit that is re-created whole, in seconds. Assumed until measured on real slices.

    Between `schedule` and `pull` the unit waits for hardware (`Recovery.repair`).
    """

    detect: float = 2.0
    """From a pod's failure to the operator's decision. A hang or a lost node takes longer."""
    schedule: float = 3.0
    """New pods are created and bound."""
    pull: float = 0.0
    """To pull the image, if the hardware does not have it yet."""
    start: float = 20.0
    """To start containers from a present image, the accelerator runtime, the mesh, and the cached compiled step."""
    restore: float = 15.0
    """To load the state of 5B parameters from a bucket, at 32 Gbit/s."""
    catch_up: float = 2.0
    """To fetch newer fragments from the syncer: about τ steps of a second."""
    unmerged: float = 13.0
    """Work that is lost with the unit. On average a fragment was last sent (H+1)/2 steps ago (H=24, 1 s)."""
