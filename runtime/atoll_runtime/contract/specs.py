"""The sections of a run that its pods get as users wrote them. The CRD is generated from the same classes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_runtime.contract.rules import WHOLE, cel, checked, rule
from atoll_runtime.contract.section import BUCKET_OR_MOUNT, FOLDER, Section, Uri
from atoll_runtime.contract.sizes import PRESETS, Dimensions

Codec = Literal["float32", "bf16", "int8", "int4"]
"""From wide to narrow."""
MergeRule = Literal["RDA", "Mean"]
OPTIMIZERS = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lamb"),
    *("lars", "lion", "nadam", "nadamw", "novograd", "optimistic_adam_v2", "optimistic_gradient_descent", "radam"),
    *("rmsprop", "sgd", "sign_sgd", "signum", "sm3", "yogi"),
)  # fmt: skip
"""Values of `OptimizerSpec.name`: the optimizers of optax whose update is a direction times the learning rate."""


class ModelSpec(Section):
    """The model to train: a preset, the dimensions of a decoder, or a task of your own."""

    model_config = checked(
        rule(
            "[has(self.preset), has(self.dimensions), has(self.task)].exists_one(given, given)",
            "must have exactly one of preset, dimensions and task",
        )
    )

    preset: Annotated[str, Field(max_length=63, json_schema_extra={"enum": list(PRESETS)})] | None = None
    """Name of a size, which tells the number of parameters. `moe-` stands for experts (docs/models.md)."""
    dimensions: Dimensions | None = None
    task: (
        Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")]
        | None
    ) = None
    """`module:attribute` in the run's image; see `atoll_runtime.model.tasks.Task`."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the initial parameters."""


class DataSpec(Section):
    """The training data: token data at `uri`, addressed by index (see `atoll_runtime.data`)."""

    uri: Annotated[Uri, Field(json_schema_extra={"pattern": BUCKET_OR_MOUNT})]
    """A data set made by `atoll data import`, in a bucket (gs://) or below a mount of `podTemplate` (file://). Several
    runs may read the same one."""
    sequence_length: Annotated[int, Field(ge=8, le=1048576)]
    """Tokens of one example."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the order in which examples are read."""
    packing: Literal["Stream", "Documents"] = "Stream"
    """How documents are cut into examples, one after the other. Stream: a token attends to everything before it in its
    example. Documents: it attends to its own document only, and the first token of a document is not predicted."""
    tokenizer: Literal["bytes", "tokenizers", "sentencepiece"] | None = None
    """Kind of tokenizer that the data set must have been made with. Not checked if not set."""


class MeshSpec(Section):
    """How the chips of one unit share the model: `tensor` × `expert`, and fully sharded data parallelism over the
    rest."""

    tensor: Annotated[int, Field(ge=1, le=256), cel(WHOLE)] = 1
    """Chips over which heads and hidden units are split. They are neighbours, because they communicate in every
    layer."""
    expert: Annotated[int, Field(ge=1, le=4096), cel(WHOLE)] = 1
    """Chips over which the experts of a layer are split."""


class OptimizerSpec(Section):
    """An optimizer of optax instead of AdamW. `beta1`, `beta2` and `weightDecay` belong to AdamW and are then
    ignored."""

    name: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra={"enum": list(OPTIMIZERS)})]
    """Name of the optimizer in optax. Its update must be a direction times the learning rate."""
    arguments: Annotated[
        dict[Annotated[str, Field(max_length=63)], float],
        Field(max_length=16),
    ] = Field(default_factory=dict)
    """Arguments by the names of optax; 1 and 0 for true and false. Learning rate and clipping have fields of
    `inner`."""


class InnerSpec(Section):
    """The optimizer of each unit: AdamW with warm-up, a cosine or constant schedule, and clipping of the global
    norm."""

    learning_rate: Annotated[float, Field(gt=0, le=10)] = 3e-3
    """Peak learning rate, after warm-up."""
    schedule: Literal["Cosine", "Constant"] = "Cosine"
    """Learning rate after warm-up. Cosine: it falls to `finalFraction` of the peak at the target. Constant: it
    stays."""
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 50
    """Inner steps over which the learning rate rises from 0. A unit that restarts without moments warms up again."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the target, as a fraction of the peak (Cosine)."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Weight decay of matrices, decoupled, multiplied by the learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moments."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moments."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Global norm to which gradients are clipped."""
    optimizer: OptimizerSpec | None = None
    z_loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of the squared logarithm of the softmax normalizer of the head, which keeps logits small."""
    precision: Literal["Auto", "bf16", "float32"] = "Auto"
    """Precision of matrix products. Auto: bf16, and float32 on CPUs. Parameters, moments and the loss are always
    float32."""
    remat: Literal["Auto", "None", "Dots", "Full"] = "Auto"
    """What a layer computes again in the backward pass. None: nothing. Dots: all but matrix products. Full: everything.
    Auto: Full from 100 million parameters on, else None."""
    mesh: MeshSpec = MeshSpec()
    batch: Annotated[int, Field(ge=1, le=1_048_576)] = 8
    """Sequences of one unit in one inner step, unless its pool sets `batch`."""
    accumulation: Annotated[int, Field(ge=1, le=1024)] = 1
    """Parts of a batch that are computed one after the other, to save memory. The gradient is the same, except that the
    load of experts is balanced within each part."""


class OuterSpec(Section):
    """The step of the syncer: P fragments, interval H, overlap τ, Nesterov momentum (Decoupled DiLoCo, arXiv
    2604.21428)."""

    model_config = checked(
        rule("self.overlap <= self.interval", "must be at most interval: τ ≤ H", "overlap"),
        rule("self.fragments <= self.interval", "must be at most interval: P ≤ H", "fragments"),
    )

    learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.6
    """Outer learning rate η. The defaults of η and μ were best for 2 and for 8 units (`docs/results/parity.md`).
    DiLoCo's 0.7 and 0.9 were tuned for larger models and longer runs, and gave a 9 to 10 % higher loss in short
    ones."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Nesterov momentum μ."""
    fragments: Annotated[int, Field(ge=1, le=1024), cel(WHOLE)] = 24
    """Fragments P of the model, merged one by one. At most `interval`."""
    interval: Annotated[int, Field(ge=1, le=10_000)] = 24
    """Interval H: inner steps between two syncs of the same fragment."""
    overlap: Annotated[int, Field(ge=1, le=1024)] = 2
    """Overlap τ: rounds in flight. At most `interval`."""
    merge: MergeRule = "RDA"
    """How outer gradients of units are merged, weighted by tokens. RDA: mean direction with the mean length, tensor by
    tensor. Mean: plain mean."""
    guard: bool = True
    """Bounds how much one unit may count. A contribution is refused if its tokens or steps are impossible, or if its
    norm is far above those that were merged. In a merge of three or more units no norm of a tensor and no number of
    steps counts for more than four times the median. A unit that is slower than `slowFactor` allows does not set the
    run's pace."""
    slow_factor: Annotated[float, Field(ge=1, le=1000)] = 4.0
    """With `guard` a unit does not set the run's pace if its steps take more than this many times the median of the
    live units' steps. Chip generations differ by less than 4."""
    codec: Codec = "bf16"
    """Widest encoding of fragments on the network; `communication` may choose a narrower one for a unit. int8, int4:
    eight or four bits per element in blocks of 64 with a scale. With int4 units fetch the change of each version; the
    first version comes whole."""


MOST_STREAMS = 32
"""Most connections of one transfer."""


class CommunicationSpec(Section):
    """How units use their links to the syncer. A field that is not set is chosen for each unit by the measured rate of
    its link, so that transfers take at most 0.7 of an interval. A change applies to learners that start after it."""

    codec: Codec | None = None
    """Encoding of fragments of every unit. Not wider than `outer.codec`."""
    streams: Annotated[int, Field(ge=1, le=MOST_STREAMS)] | None = None
    """TCP connections over which a host sends or receives one fragment of a shard."""
    chunk_kib: Annotated[int, Field(ge=64, le=4096)] | None = None
    """KiB that a connection sends at a time."""
    period: Annotated[int, Field(ge=1, le=32)] | None = None
    """A unit takes part in one of this many rounds of each fragment."""


class GraceSpec(Section):
    """How long a round waits for more than K units: `fraction` of the slack, at most `maxSteps` learner steps (Eq.
    3)."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """Part of a round's remaining time for which it waits for more than K units. 0 means no grace."""
    max_steps: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Longest wait, in steps of the slowest unit that sets the run's pace."""


class QuorumSpec(Section):
    """The quorum K of a round, and the grace window after it."""

    min: Annotated[int, Field(ge=1, le=1024), cel(WHOLE)] = 1
    """Units K that a round needs. At most the units of all pools."""
    grace: GraceSpec = GraceSpec()


class TargetSpec(Section):
    """When the run is complete: at the first of the given targets."""

    model_config = checked(
        rule("has(self.globalSteps) || has(self.tokens)", "must have globalSteps or tokens")
    )

    global_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Global steps of the syncer."""
    tokens: Annotated[int, Field(ge=1, le=10**16)] | None = None
    """Tokens trained by all units together."""


class CheckpointSpec(Section):
    """Where the global checkpoints of the run are, and how often one is made."""

    uri: Annotated[Uri, Field(json_schema_extra={"pattern": FOLDER})]
    """Folder of this run in a bucket. Checkpoints are written to `global/<step>/` below it. A new run starts from the
    newest complete one that is there. The path has none of the characters `*?[]#%`, and no empty part."""
    interval_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Global steps between two checkpoints."""
    keep: Annotated[int, Field(ge=2, le=1000)] = 3
    """Complete checkpoints to keep. At least two, so that there is an older one if the newest is corrupt."""


class EvaluationSpec(Section):
    """How the global model is evaluated while the run trains: each complete checkpoint, the newest first."""

    split: Literal["heldout", "train"] = "heldout"
    """Split of the data set to evaluate on."""
    tokens: Annotated[int, Field(ge=8, le=1_000_000_000)] = 65_536
    """Tokens to evaluate at most, but at least one example. They are spread evenly over the split and always the
    same."""
    sequence_length: Annotated[int, Field(ge=8, le=1048576)] | None = None
    """Tokens of one example. Defaults to `data.sequenceLength`."""
