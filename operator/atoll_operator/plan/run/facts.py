"""What was observed and decided of a run in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.plan.pods.names import syncer
from atoll_operator.plan.run.completion import QuorumLost
from atoll_operator.plan.run.evaluation import EvaluationPlan
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.rollout import Rollout
from atoll_operator.plan.run.suspension import Suspension
from atoll_operator.plan.run.syncer_state import UNAVAILABLE
from atoll_operator.plan.unit.waiting import hindrances


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What was observed and decided, from which the status follows."""

    run: RunObserved
    units: Mapping[str, UnitFacts]
    """Units that name this run."""
    wanted: int
    """Units that the spec asks for, and those that users created."""
    learning: int
    """Those of them that learn."""
    taken: tuple[str, ...]
    """Names of wanted units that units of another run have."""
    rollout: Rollout
    suspension: Suspension | None
    """None if the run is not to be suspended."""
    quorum_lost: QuorumLost | None
    starting: bool
    """The run starts, and its syncer or a shard of it may not exist yet."""
    evaluation: EvaluationPlan

    @property
    def syncer_starts(self) -> bool:
        """The syncer does not answer yet, which is no problem while the run starts."""
        state = self.run.syncer
        return self.starting and not state.answers and state.reason in ("", UNAVAILABLE)

    @property
    def syncer_wait(self) -> str:
        """Why the syncer does not answer: pods that do not exist count only after they were polled in vain."""
        missing = self.run.spec.syncer.shards if self.run.syncer.reason == UNAVAILABLE else 0
        return hindrances(syncer(self.run.name), missing, self.run.syncer_pods)
