"""The sections of a run that its pods are told as users wrote them: the CRD is made of the same classes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_runtime.contract.section import GcsUri, Section
from atoll_runtime.contract.sizes import Dimensions

OPTIMIZERS = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lamb"),
    *("lars", "lion", "nadam", "nadamw", "novograd", "optimistic_adam_v2", "optimistic_gradient_descent", "radam"),
    *("rmsprop", "sgd", "sign_sgd", "signum", "sm3", "yogi"),
)  # fmt: skip
"""Values of `OptimizerSpec.name`: optax's optimisers whose update is a direction times the learning rate."""


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
    ] = Field(default_factory=dict)
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
