"""What operator and runtime agree on for a pod: environment, files, ports, exit codes, termination messages, names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# Environment of a runtime pod.
ENV_UNIT = "ATOLL_UNIT"
"""JSON of `UnitContract`, in each learner pod."""
RUN_FILE = "/etc/atoll/run/run.json"
"""JSON of `RunContract`, from the run's ConfigMap, in learner, syncer and evaluator pods."""
ENV_RUN_FILE = "ATOLL_RUN_FILE"
"""Path to use instead of `RUN_FILE` (tests, a run without a cluster)."""
TLS_DIR = "/etc/atoll/tls"
"""`ca.crt`, `tls.crt`, `tls.key` of the pod's own identity."""
ENV_TLS_DIR = "ATOLL_TLS_DIR"
INCARNATION_FILE = "/etc/atoll/pod/incarnation"
"""The incarnation of a learner's process, from its pod's annotation. Without this file the one in `ENV_UNIT` counts."""
ENV_INCARNATION_FILE = "ATOLL_INCARNATION_FILE"
JOURNAL_DIR = "/var/lib/atoll"
"""The syncer's volume."""
ENV_JOURNAL_DIR = "ATOLL_JOURNAL_DIR"
ENV_SHARD = "ATOLL_SHARD"
"""Index of a syncer's pod in `RunContract.shards`; 0 if not set."""
ENV_LOCK_MEMORY = "ATOLL_LOCK_MEMORY"
"""`true`: a learner's container may lock any amount of memory, and its process raises the limit."""
ENV_SYNCER = "ATOLL_SYNCER"
"""JSON of `SyncerContract`, in the syncer's pods."""
ENV_EVALUATION = "ATOLL_EVALUATION"
"""JSON of `EvaluationContract`, in the evaluator's pod."""

# Ports.
SYNCER_PORT = 7400
"""mTLS: sessions."""
STATUS_PORT = 7401
"""HTTPS with mTLS. `GET /status` returns `SyncerStatus`, or `EvaluatorStatus` from the evaluator. The operator may
`POST` an `Order` to the syncer there."""
HEALTH_PORT = 7402
"""Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
PEER_PORT = 7403
"""mTLS: a learner's snapshots, for units that seed from a peer."""
TRANSFER_PORT = 7404
"""mTLS: bodies of contributions and versions."""
LIBTPU_PORT = 8471
"""libtpu's mesh between the hosts of a slice."""
COORDINATOR_PORT = 8476
"""JAX's coordinator. Pinned, because its default moved in JAX 0.8.1 (jax#35905)."""
SPARE_COORDINATOR_PORT = COORDINATOR_PORT + 1
"""The incarnations of one gang alternate between this port and `COORDINATOR_PORT`. So a host that restarts before host
0 has ended does not meet the earlier coordinator of host 0."""

EXIT_OK = 0
EXIT_TERMINAL = 64
"""The process ended for a reason that a restart cannot fix. The termination message has the reason."""
EXIT_FENCED = 65
"""A newer incarnation of this unit is registered."""
EXIT_RESTART = 66
"""The process made room for a newer incarnation in the same pod."""
EXIT_VERSION = 67
"""The version of the process does not fit its operator or syncer. Another image or another spec fixes it."""
VERSION_MISMATCH = "VersionMismatch"
"""Reason in the termination message for `EXIT_VERSION`."""
TERMINATION_LOG = "/dev/termination-log"
"""A pod writes `Reason: message` here before it exits with an error. A learner writes its `LastWords`."""


_LAST_WORDS = re.compile(r"incarnation (\d{1,9})(?:\n|\Z)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LastWords:
    """A learner's termination message: first its incarnation, then `Reason: message` if it knows why it ended."""

    incarnation: int | None
    """None if the message names none, because the container ended before the learner's own code ran."""
    text: str = ""

    def __str__(self) -> str:
        return f"incarnation {self.incarnation}\n{self.text}"

    @classmethod
    def parse(cls, message: str) -> LastWords:
        """A message without an incarnation is taken as text."""
        match = _LAST_WORDS.match(message)
        return cls(int(match[1]), match[2].strip()) if match else cls(None, message.strip())


def identity(
    namespace: str, run: str, role: Literal["syncer", "unit", "evaluator", "operator"], name: str
) -> str:
    """The URI SAN of a certificate of a run."""
    return f"spiffe://atoll.dev/ns/{namespace}/run/{run}/{role}/{name}"
