"""What operator and runtime agree on: the sections of a run, the JSON handed to a pod, names, the syncer's report.

It uses only Pydantic, because the operator imports no other package of the runtime, and its image has no JAX. A section
of `TrainingRun.spec` that the runtime needs is defined here once. It passes unchanged from the user's YAML to the pods.
"""

from __future__ import annotations

from atoll_runtime.contract.orders import (
    EvaluationContract,
    Order,
    RunContract,
    SeedSource,
    SyncerAddress,
    SyncerContract,
    TapeDepth,
    UnitContract,
    VersionMismatch,
    brief,
    dump,
    parse_evaluation,
    parse_run,
    parse_syncer,
    parse_unit,
    problems,
)
from atoll_runtime.contract.pod import (
    COORDINATOR_PORT,
    ENV_EVALUATION,
    ENV_INCARNATION_FILE,
    ENV_JOURNAL_DIR,
    ENV_LOCK_MEMORY,
    ENV_RUN_FILE,
    ENV_SHARD,
    ENV_SYNCER,
    ENV_TLS_DIR,
    ENV_UNIT,
    EXIT_FENCED,
    EXIT_OK,
    EXIT_RESTART,
    EXIT_TERMINAL,
    EXIT_VERSION,
    HEALTH_PORT,
    INCARNATION_FILE,
    JOURNAL_DIR,
    LIBTPU_PORT,
    PEER_PORT,
    RUN_FILE,
    SPARE_COORDINATOR_PORT,
    STATUS_PORT,
    SYNCER_PORT,
    TERMINATION_LOG,
    TLS_DIR,
    TRANSFER_PORT,
    VERSION_MISMATCH,
    LastWords,
    identity,
)
from atoll_runtime.contract.reports import (
    MOST_REASONS,
    MOST_UNITS,
    MOST_WAITS,
    OTHER,
    BeginningReport,
    CheckpointReport,
    EvaluationReport,
    EvaluatorStatus,
    LedgerReport,
    LinkReport,
    NoReport,
    Report,
    SyncerStatus,
    UnitReport,
    WaitReport,
)
from atoll_runtime.contract.section import Section
from atoll_runtime.contract.sizes import PRESETS, SIZES, Dimensions
from atoll_runtime.contract.specs import (
    OPTIMIZERS,
    CheckpointSpec,
    Codec,
    CommunicationSpec,
    DataSpec,
    EvaluationSpec,
    GraceSpec,
    InnerSpec,
    MergeRule,
    MeshSpec,
    ModelSpec,
    OptimizerSpec,
    OuterSpec,
    QuorumSpec,
    TargetSpec,
)
