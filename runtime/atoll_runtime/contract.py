"""What operator and runtime agree on: the sections of a run, the JSON handed to a pod, names, the syncer's report.

Pydantic only: the operator imports this file and no other of the runtime, and its image holds no JAX. A section of
`TrainingRun.spec` that the runtime needs is defined here once and passes unchanged from the user's YAML to the pods.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

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
ENV_EVALUATION = "ATOLL_EVALUATION"
"""JSON of `EvaluationContract`, in the evaluator's pod."""

OPTIMIZERS = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lamb"),
    *("lars", "lion", "nadam", "nadamw", "novograd", "optimistic_adam_v2", "optimistic_gradient_descent", "radam"),
    *("rmsprop", "sgd", "sign_sgd", "signum", "sm3", "yogi"),
)  # fmt: skip
"""Values of `OptimizerSpec.name`: optax's optimisers whose update is a direction times the learning rate."""

# Ports.
SYNCER_PORT = 7400
"""gRPC with mTLS: sessions and fragments."""
STATUS_PORT = 7401
"""HTTPS with mTLS: `GET /status` returns `SyncerStatus`, where the operator may `POST` an `Order`; of the evaluator
`EvaluatorStatus`."""
HEALTH_PORT = 7402
"""Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
PEER_PORT = 7403
"""gRPC with mTLS: a learner's snapshots, for units that seed from a peer."""
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


class Section(BaseModel):
    """A part of the wire format: camelCase on the wire, unknown keys are errors, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,  # `kubectl explain` shows them
    )


ShortName = Annotated[str, Field(min_length=1, max_length=63)]
GcsUri = Annotated[str, Field(min_length=6, max_length=512, pattern=r"^(gs|file)://[^ \t-\r]+$")]


class Dimensions(Section):
    """A decoder's size: dense, or with routed experts beside the MLP of each layer."""

    layers: Annotated[int, Field(ge=1, le=512)]
    """Decoder layers."""
    width: Annotated[int, Field(ge=8, le=65536)]
    """Of the residual stream: an even multiple of `heads`."""
    heads: Annotated[int, Field(ge=1, le=1024)]
    """Query heads of attention."""
    kv_heads: Annotated[int, Field(ge=1, le=1024)]
    """Heads of keys and values, which groups of query heads share; a divisor of `heads`."""
    hidden: Annotated[int, Field(ge=8, le=262144)]
    """Of the gated MLP of each layer."""
    vocabulary: Annotated[int, Field(ge=2, le=1048576)] = 256
    """Tokens; at least the vocabulary of the data set."""
    tied: bool = True
    """The head is the embedding's transpose."""
    experts: Annotated[int, Field(ge=0, le=4096)] = 0
    """Routed experts of each layer; every token passes the MLP of `hidden` besides. 0: dense."""
    experts_per_token: Annotated[int, Field(ge=1, le=64)] = 2
    """Experts that each token passes; at most `experts`."""
    expert_hidden: Annotated[int, Field(ge=0, le=262144)] = 0
    """Of one expert; needed with `experts`."""


SIZES: dict[str, Dimensions] = {
    "250k": Dimensions(layers=5, width=64, heads=4, kv_heads=2, hidden=192),
    "1m": Dimensions(layers=5, width=128, heads=4, kv_heads=2, hidden=384),  # the demo's
    "10m": Dimensions(layers=6, width=384, heads=6, kv_heads=2, hidden=1024),
    "35m": Dimensions(layers=12, width=512, heads=8, kv_heads=2, hidden=1536),
    "125m": Dimensions(layers=20, width=768, heads=12, kv_heads=4, hidden=2048),
    "350m": Dimensions(layers=32, width=1024, heads=8, kv_heads=4, hidden=2560),
    "1b": Dimensions(layers=22, width=2048, heads=16, kv_heads=4, hidden=5632),
    "2b": Dimensions(layers=24, width=2560, heads=20, kv_heads=4, hidden=8192),
    "5b": Dimensions(layers=32, width=3584, heads=28, kv_heads=4, hidden=11264),
    "9b": Dimensions(layers=40, width=4096, heads=32, kv_heads=8, hidden=14336),
    "12b": Dimensions(layers=40, width=5120, heads=40, kv_heads=8, hidden=15360),
    "moe-1m": Dimensions(layers=4, width=96, heads=4, kv_heads=2, hidden=192, experts=8, expert_hidden=64),
    "moe-10m": Dimensions(layers=8, width=256, heads=4, kv_heads=2, hidden=256, experts=8, expert_hidden=128),
    "moe-125m": Dimensions(
        layers=16, width=512, heads=8, kv_heads=4, hidden=512, experts=16, expert_hidden=256
    ),
    "moe-1b": Dimensions(
        layers=16, width=1024, heads=8, kv_heads=4, hidden=2048, experts=32, expert_hidden=512
    ),
    "moe-12b": Dimensions(
        layers=24, width=2048, heads=16, kv_heads=4, hidden=4096, experts=64, expert_hidden=1152
    ),
}
"""Presets, byte vocabulary, head tied to the embedding. The names carry all parameters, to within 15 %.

From 350m on every width is a multiple of 256 and heads have 128 elements, as a TPU's matrix unit wants them.
"""
PRESETS = tuple(SIZES)
"""Names of `ModelSpec.preset`."""


class ModelSpec(Section):
    """What is trained: a preset by name, the dimensions of a decoder, or a task of the user's own."""

    preset: Annotated[str, Field(max_length=63)] | None = None
    """A size by its name, which says how many parameters it has; `moe-` with experts (docs/models.md)."""
    dimensions: Dimensions | None = None
    task: (
        Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")]
        | None
    ) = None
    """`module:attribute` in the run's image; see `atoll_runtime.model.tasks.Task`."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of the initial parameters."""


class DataSpec(Section):
    """Index-addressed token data under `uri` (see `atoll_runtime.data`)."""

    uri: GcsUri
    """The data set, as `atoll data import` made it: in a bucket (gs://) or below a mount of `podTemplate`
    (file://). Many runs may read one."""
    sequence_length: Annotated[int, Field(ge=8, le=1048576)]
    """Tokens of one example."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of the order in which examples are read."""
    packing: Literal["Stream", "Documents"] = "Stream"
    """Examples are cut from the documents one after the other. Stream: a token sees all that stands before it in its
    example. Documents: it sees its own document alone, and the first token of a document is not predicted."""
    tokenizer: Literal["bytes", "tokenizers", "sentencepiece"] | None = None
    """Where given, what the data set must have been made with."""


class MeshSpec(Section):
    """How the chips of one unit share a model: `tensor` × `expert`, and fully sharded data-parallel over the rest."""

    tensor: Annotated[int, Field(ge=1, le=256)] = 1
    """Chips over which heads and hidden units are split; neighbours, for they talk in every layer."""
    expert: Annotated[int, Field(ge=1, le=4096)] = 1
    """Chips over which the experts of a layer are split."""


class OptimizerSpec(Section):
    """An optimiser of optax in the place of AdamW; `beta1`, `beta2` and `weightDecay` are AdamW's and do not count."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Such as lion, sgd, adafactor: an optimiser whose update is a direction times the learning rate."""
    arguments: Annotated[
        dict[Annotated[str, Field(max_length=63)], float],
        Field(max_length=16),
    ] = {}
    """By optax's own names; 1 and 0 for true and false. The learning rate and clipping stand beside."""


class InnerSpec(Section):
    """The island's own optimiser: AdamW, warm-up then cosine or constant, global-norm clipping."""

    learning_rate: Annotated[float, Field(gt=0, le=10)] = 3e-3
    """The peak, after warm-up."""
    schedule: Literal["Cosine", "Constant"] = "Cosine"
    """After warm-up: Cosine falls to `finalFraction` of the peak at the target, Constant stays."""
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 50
    """Inner steps over which the learning rate rises from 0; a unit that comes back without moments warms up again."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the target, as a fraction of the peak (Cosine)."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Of matrices, decoupled, times the learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moments."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moments."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Global norm to which a gradient is clipped."""
    optimizer: OptimizerSpec | None = None
    z_loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of the squared logarithm of the head's normaliser, which keeps logits small."""
    precision: Literal["Auto", "bf16", "float32"] = "Auto"
    """Of matrix products. Auto: bf16, but float32 on CPUs. Parameters, moments and the loss are float32 always."""
    remat: Literal["Auto", "None", "Dots", "Full"] = "Auto"
    """What a layer computes again for the backward pass: nothing, all but matrix products, or all. Auto: all, from
    100 million parameters on."""
    mesh: MeshSpec = MeshSpec()
    batch: Annotated[int, Field(ge=1, le=1_048_576)] = 8
    """Sequences a unit trains on in one inner step, where its pool does not say otherwise."""
    accumulation: Annotated[int, Field(ge=1, le=1024)] = 1
    """Parts of a step's batch that are computed one after the other, for less memory. The gradient is the same, but for
    the experts' balance, which is then kept in each part by itself."""


class OuterSpec(Section):
    """The syncer's step: fragments P, interval H, overlap τ, Nesterov momentum (Decoupled DiLoCo, arXiv 2604.21428)."""

    learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.6
    """η. With μ the best of those tried for 2 and for 8 units (`docs/results/parity.md`); DiLoCo's own 0.7 and 0.9 were
    tuned for larger models in longer runs, and cost 9 to 10 % of the loss in short ones."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """μ, of Nesterov."""
    fragments: Annotated[int, Field(ge=1, le=1024)] = 24
    """P. At most `interval`."""
    interval: Annotated[int, Field(ge=1, le=10_000)] = 24
    """H: inner steps between two syncs of the same fragment."""
    overlap: Annotated[int, Field(ge=1, le=1024)] = 2
    """τ: rounds in flight. At most `interval`."""
    merge: Literal["RDA", "Mean"] = "RDA"
    """Of the units' outer gradients, weighted by tokens. RDA: mean direction with the mean length of all, tensor by
    tensor. Mean: plain."""
    codec: Literal["bf16", "float32", "int4"] = "bf16"
    """Of fragments on the wire. int4: four bits an element each way, in blocks of 64 with a scale: units push their
    outer gradients, and fetch what each version changes in the one before; the first one they get as bf16."""


class GraceSpec(Section):
    """How long a round waits for more than K: `fraction` of the slack, at most `maxSteps` learner steps (Eq. 3)."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """Of the time that a round has left, the part for which it waits for more than K units; 0: no grace."""
    max_steps: Annotated[float, Field(ge=0, le=10)] = 1.0
    """The longest wait, in steps of the slowest unit that is waited for."""


class QuorumSpec(Section):
    """K, and the grace window after it."""

    min: Annotated[int, Field(ge=1, le=1024)] = 1
    """K: a round needs this many units; at most the units of all pools."""
    grace: GraceSpec = GraceSpec()


class TargetSpec(Section):
    """When the run is complete, by the syncer's clock: whichever comes first of those given."""

    global_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Of the syncer's clock."""
    tokens: Annotated[int, Field(ge=1, le=10**16)] | None = None
    """Of all units together."""


class CheckpointSpec(Section):
    """Where the run's checkpoints lie and how often a global one is cut."""

    uri: GcsUri
    """The run's own root; `global/<step>/` stands below it."""
    interval_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Global steps between two cuts."""
    keep: Annotated[int, Field(ge=2, le=1000)] = 3
    """Complete checkpoints kept; two at least, so that a corrupt newest one has a predecessor."""


class EvaluationSpec(Section):
    """What is measured of the global model while the run trains: each complete checkpoint, the newest first."""

    split: Literal["heldout", "train"] = "heldout"
    """Of the data set."""
    tokens: Annotated[int, Field(ge=8, le=1_000_000_000)] = 65_536
    """At most so many, but one example at least, spread evenly over the split, the same ones each time."""
    sequence_length: Annotated[int, Field(ge=8, le=1048576)] | None = None
    """Of an example; `data.sequenceLength` where not given."""


SeedSource = Literal["Checkpoint", "Peer"]
"""Where a new incarnation gets its state: the newest global cut in the bucket, or a healthy unit."""
TapeDepth = Literal["Decisions", "Contributions"]
"""What the event tape holds: every event and decision, or the contributions too, so that Θ can be computed anew."""


class SyncerAddress(Section):
    """Where a shard of the syncer listens and what its certificate says."""

    host: str
    port: int = SYNCER_PORT
    status_port: int = STATUS_PORT
    health_port: int = HEALTH_PORT


class RunContract(Section):
    """What every pod of a run is told (`run.json`)."""

    name: ShortName
    namespace: ShortName
    uid: str
    """The TrainingRun's uid: a journal of another uid is not this run's."""
    model: ModelSpec
    data: DataSpec
    inner: InnerSpec
    outer: OuterSpec
    quorum: QuorumSpec
    target: TargetSpec
    checkpoint: CheckpointSpec
    shards: Annotated[tuple[SyncerAddress, ...], Field(min_length=1, max_length=64)]
    """The syncer's shards; each owns whole tensors of every fragment."""
    seed: SeedSource = "Checkpoint"
    startup_seconds: int = 1800
    """From running pods until all hosts of a unit are connected: state has to be had in less."""
    tape: TapeDepth = "Decisions"


class UnitContract(Section):
    """What one learner pod is told besides (`ATOLL_UNIT`)."""

    unit: ShortName
    incarnation: Annotated[int, Field(ge=1)]
    """That of the gang's creation; `INCARNATION_FILE` tells of later ones in the same pods."""
    host: Annotated[int, Field(ge=0)]
    """0-based index of this pod in its gang."""
    hosts: Annotated[int, Field(ge=1)]
    chips: Annotated[int, Field(ge=0)] = 0
    """TPU chips of this host; 0: any devices will do."""
    coordinator: str
    """`name:port` of host 0 for `jax.distributed`."""
    address: str = ""
    """`name:port` where other units get this host's snapshots; the certificate names the unit. Empty: nowhere."""
    batch: Annotated[int, Field(ge=1)]
    """Sequences of the whole unit in one inner step; a multiple of its devices is not required."""
    stream: Annotated[int, Field(ge=0)]
    """The unit's slot among `streams` disjoint data streams."""
    streams: Annotated[int, Field(ge=1)]


class EvaluationContract(EvaluationSpec):
    """What the evaluator's pod is told besides (`ATOLL_EVALUATION`)."""

    status_port: int = STATUS_PORT
    health_port: int = HEALTH_PORT


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


class Report(BaseModel):
    """A part of what the syncer reports; the reader ignores keys that it does not know (a newer syncer)."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class BeginningReport(Report):
    """How an incarnation came to its first step, as its host 0 saw it."""

    joined: float
    """Unix seconds at which all hosts were one mesh."""
    stepped: float
    """Unix seconds at which the first step had ended."""
    compiling: float
    """Seconds between the two in which programs were compiled or loaded."""
    compiled: int = 0
    """Programs."""
    loaded: int = 0
    """From the cache."""


class UnitReport(Report):
    """One unit, as the syncer sees it."""

    incarnation: int
    hosts: int
    """Hosts connected now."""
    state: Literal["Joining", "Learning", "Gone"]
    """`Learning` once a contribution of this incarnation was merged; `Gone` while no host is connected."""
    step: int = 0
    """The unit's own inner step."""
    inner_steps: int = 0
    """Inner steps reported by all incarnations since the run began."""
    tokens: int = 0
    """Tokens trained by all incarnations since the run began."""
    loss: float | None = None
    tokens_per_second: float = 0.0
    step_seconds: float = 0.0
    contributions: int = 0
    """Merges of this incarnation."""
    staleness: int = 0
    """Global steps since its last merge."""
    seeded_step: int | None = None
    """Global step of the checkpoint it was seeded from."""
    seed_message: str = ""
    """Anything worth telling about the seed, such as a checkpoint that was skipped and why."""
    first_merge_time: float | None = None
    """Unix seconds of the first merge of this incarnation."""
    beginning: BeginningReport | None = None
    """None before the second step."""


class CheckpointReport(Report):
    newest_step: int | None = None
    uri: str = ""
    error: str = ""
    """Why the last save failed; empty after a good one."""
    current: bool = False
    """The newest one holds every merge that was ever made."""
    orderable: int = 0
    """The least step of a cut that can hold all that the shard has merged: the newest that it has recorded, or the next
    one."""


class LedgerReport(Report):
    """What became of a unit's tokens, all incarnations. In token-fragments: a token counts once for each fragment.

    `trained` = `merged` + the sum of `discarded` + `in_flight`, at every instant.
    """

    trained: int = 0
    merged: int = 0
    discarded: dict[str, int] = {}
    """By reason: `Overwritten`, `Missed`, `Replaced`, `Finished`; see `atoll_runtime.sync.ledger`."""
    in_flight: int = 0


class SyncerStatus(Report):
    """`GET /status` of a shard of the syncer."""

    run_uid: str
    phase: Literal["Starting", "Running", "Finishing", "Finished", "Failed"]
    """`Finished` only after the final float32 cut stands in the bucket with its manifest."""
    message: str = ""
    """Why it is in this phase, or why the current round is waiting."""
    global_step: int = 0
    target_steps: int | None = None
    tokens: int = 0
    """Tokens merged."""
    loss: float | None = None
    """Token-weighted mean of the live units' last training losses."""
    tokens_per_second: float = 0.0
    quorum: str = ""
    """Members of the last merged round, such as `3/3 (K=2)`."""
    rounds: int = 0
    real_interval: float = 0.0
    """Inner steps between two merges of the same fragment, as measured (pitfall 1: H collapses on fast networks)."""
    bytes_in: int = 0
    bytes_out: int = 0
    restarts: int = 0
    """Times that the syncer resumed from its journal."""
    checkpoint: CheckpointReport = CheckpointReport()
    units: dict[str, UnitReport] = {}
    shard: int = 0
    shards: int = 1
    fragments: int = 0
    """Fragments of which this shard owns a part; the ledger counts each token so many times."""
    ledger: dict[str, LedgerReport] = {}
    """By unit, as this shard sees it."""
    final_checkpoint: str = ""
    """URI of the final cut, when `Finished`."""
    time: float = 0.0
    """Unix seconds of this report."""


class EvaluationReport(Report):
    """The global model of one checkpoint on data that it was not trained on."""

    step: int
    """Global step of the checkpoint."""
    loss: float | None = None
    """Nats per token; None where it is not finite."""
    tokens: int
    """Predicted ones, over which the loss is the mean."""
    split: Annotated[str, Field(max_length=63)]
    seconds: float
    """That reading and evaluating it took."""
    time: float
    """Unix seconds of the result."""


class EvaluatorStatus(Report):
    """`GET /status` of the evaluator."""

    run_uid: str
    phase: Literal["Starting", "Waiting", "Evaluating"]
    message: str = ""
    """What it does, or waits for."""
    error: str = ""
    """Why the newest checkpoint could not be evaluated, or the bucket not be used; empty after a good attempt."""
    newest: EvaluationReport | None = None
    """Of the newest checkpoint that was evaluated."""
    evaluated: int = 0
    """Checkpoints in the bucket that were."""
    skipped: int = 0
    """Checkpoints that were listed, and removed from the bucket before their turn came."""


class Order(Section):
    """What the operator asks of a shard (`POST /status`)."""

    cut: Annotated[int, Field(ge=0)]
    """Record the durable state now, as the cut of this global step; all shards get the same one. One that is older than
    the newest cut is ignored."""


S = TypeVar("S", bound=Section)


def dump(section: BaseModel) -> str:
    """Compact JSON as it goes over the wire."""
    return section.model_dump_json(by_alias=True, exclude_none=True)


def brief(section: BaseModel) -> str:
    """Compact JSON without what is at its default: so a pod may be older than the operator that tells it something, for
    as long as nobody uses what it does not know."""
    return section.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)


class VersionMismatch(Exception):
    """This process is of another version than the operator or the syncer that it deals with."""


def parse_run(text: str | bytes) -> RunContract:
    """Raises `VersionMismatch` naming each field that cannot be read."""
    return _parse(RunContract, "run.json", text)


def parse_evaluation(text: str | bytes) -> EvaluationContract:
    """Raises `VersionMismatch` naming each field that cannot be read."""
    return _parse(EvaluationContract, ENV_EVALUATION, text)


def parse_unit(text: str | bytes) -> UnitContract:
    """Raises `VersionMismatch` naming each field that cannot be read."""
    return _parse(UnitContract, ENV_UNIT, text)


def _parse(kind: type[S], name: str, text: str | bytes) -> S:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        raise VersionMismatch(
            f"{name}: {'; '.join(wrong)}. The operator that wrote it is of another version than this image: set "
            "spec.image to one of the operator's version, or leave these fields out of the run"
        ) from error
