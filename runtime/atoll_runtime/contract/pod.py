"""The pod that both know: its environment and files, its ports, how its processes end and who they say they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# Environment of a runtime pod.
ENV_UNIT = "ATOLL_UNIT"
"""JSON of `UnitContract`, in each learner pod."""
RUN_FILE = "/etc/atoll/run/run.json"
"""JSON of `RunContract`, from the run's ConfigMap, in learner and syncer pods."""
ENV_RUN_FILE = "ATOLL_RUN_FILE"
"""Another place for `RUN_FILE` (tests, a run without a cluster)."""
TLS_DIR = "/etc/atoll/tls"
"""`ca.crt`, `tls.crt`, `tls.key` of the pod's own identity."""
ENV_TLS_DIR = "ATOLL_TLS_DIR"
INCARNATION_FILE = "/etc/atoll/pod/incarnation"
"""The incarnation that a learner's process is to be, from its pod's annotation; where there is no such file, that of
`ENV_UNIT` counts."""
ENV_INCARNATION_FILE = "ATOLL_INCARNATION_FILE"
JOURNAL_DIR = "/var/lib/atoll"
"""The syncer's volume."""
ENV_JOURNAL_DIR = "ATOLL_JOURNAL_DIR"
ENV_SHARD = "ATOLL_SHARD"
"""Index of a syncer's pod among `RunContract.shards`; 0 where it is not set."""
ENV_LOCK_MEMORY = "ATOLL_LOCK_MEMORY"
"""`true`: a learner's container may lock as much memory as it wants, and its process raises the limit."""
ENV_SYNCER = "ATOLL_SYNCER"
"""JSON of `SyncerContract`, in the syncer's pods."""
ENV_EVALUATION = "ATOLL_EVALUATION"
"""JSON of `EvaluationContract`, in the evaluator's pod."""

# Ports.
SYNCER_PORT = 7400
"""mTLS: sessions."""
STATUS_PORT = 7401
"""HTTPS with mTLS: `GET /status` returns `SyncerStatus`, where the operator may `POST` an `Order`; of the evaluator
`EvaluatorStatus`."""
HEALTH_PORT = 7402
"""Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
PEER_PORT = 7403
"""mTLS: a learner's snapshots, for units that seed from a peer."""
TRANSFER_PORT = 7404
"""mTLS: bodies of contributions and versions."""
LIBTPU_PORT = 8471
"""libtpu's mesh between the hosts of a slice."""
COORDINATOR_PORT = 8476
"""JAX's coordinator; pinned, because its default moved in JAX 0.8.1 (jax#35905)."""
SPARE_COORDINATOR_PORT = COORDINATOR_PORT + 1
"""Taken in turns with `COORDINATOR_PORT` by the incarnations of one gang: a host that restarts before host 0 has ended
must not meet the coordinator that host 0 had before."""

EXIT_OK = 0
EXIT_TERMINAL = 64
"""The process ended for a reason that a restart cannot mend; the reason is the termination message."""
EXIT_FENCED = 65
"""A newer incarnation of this unit is registered."""
EXIT_RESTART = 66
"""The process made room for a newer incarnation in the same pod."""
EXIT_VERSION = 67
"""The process is of a version that does not go with its operator or syncer; another image or another spec mends it."""
VERSION_MISMATCH = "VersionMismatch"
"""Reason in its termination message."""
TERMINATION_LOG = "/dev/termination-log"
"""A pod writes `Reason: message` here before it exits with an error; a learner its `LastWords`."""


_LAST_WORDS = re.compile(r"^incarnation (\d{1,9})(?:\n(.*))?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LastWords:
    """A learner's termination message: first which incarnation it was, then `Reason: message` where it knows why."""

    incarnation: int | None
    """None where the message names none: the container ended before the learner's own code ran."""
    text: str = ""

    def __str__(self) -> str:
        return f"incarnation {self.incarnation}\n{self.text}"

    @classmethod
    def parse(cls, message: str) -> LastWords:
        """A message without a number is all text."""
        match = _LAST_WORDS.match(message)
        return cls(int(match[1]), match[2].strip()) if match else cls(None, message.strip())


def identity(
    namespace: str, run: str, role: Literal["syncer", "unit", "evaluator", "operator"], name: str
) -> str:
    """The URI SAN of a certificate of a run."""
    return f"spiffe://atoll.dev/ns/{namespace}/run/{run}/{role}/{name}"
