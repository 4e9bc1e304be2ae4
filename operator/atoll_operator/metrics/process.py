"""What Prometheus reads of the operator itself; `runs.py` has the runs.

No label has more values than there are reasons or kinds.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STAGE_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
HEAL_BUCKETS = (1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600)


class Metrics:
    """One set per process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.heal_seconds = Histogram(
            "atoll_heal_seconds",
            "From a unit's failure to the first merge of its next incarnation.",
            buckets=HEAL_BUCKETS,
            registry=registry,
        )
        self.heal_stage_seconds = Histogram(
            "atoll_heal_stage_seconds",
            "Each stage of a heal: schedule, pull, start, restore, compile, catch_up.",
            ["stage"],
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self.restarts = Counter(
            "atoll_unit_restarts",
            "Restarts of units, in place or by a new gang.",
            ["reason"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "atoll_reconcile_seconds", "One pass over one object.", ["kind"], registry=registry
        )
        self.reconcile_errors = Counter(
            "atoll_reconcile_errors", "Passes that ended with an error.", ["kind", "error"], registry=registry
        )
        self.queue_depth = Gauge("atoll_queue_depth", "Keys that wait for a worker.", registry=registry)
        self.queue_age = Gauge(
            "atoll_queue_oldest_seconds", "Age of the oldest key, waiting or at work.", registry=registry
        )
        self.api_errors = Counter(
            "atoll_api_errors", "Answers of the API server other than success.", ["code"], registry=registry
        )
        self.poll_errors = Counter(
            "atoll_poll_errors",
            "Polls of a syncer's or an evaluator's status that failed.",
            ["reason"],
            registry=registry,
        )
        self.leader = Gauge("atoll_leader", "1 in the operator that acts, 0 in others.", registry=registry)

    def count_api_error(self, code: str) -> None:
        """Counts an answer of an API server by its status code, or `unreachable`; thread-safe."""
        self.api_errors.labels(code).inc()
