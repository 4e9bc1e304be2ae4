"""What the operator tells a pod: the run, the unit, an evaluation, a cut to record."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from atoll_runtime.contract.pod import (
    ENV_EVALUATION,
    ENV_SYNCER,
    ENV_UNIT,
    HEALTH_PORT,
    LIBTPU_PORT,
    STATUS_PORT,
    SYNCER_PORT,
    TRANSFER_PORT,
)
from atoll_runtime.contract.section import Section, ShortName
from atoll_runtime.contract.specs import (
    CheckpointSpec,
    Codec,
    CommunicationSpec,
    DataSpec,
    EvaluationSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    TargetSpec,
)

SeedSource = Literal["Checkpoint", "Peer"]
"""Where a new incarnation gets its state: the newest global cut in the bucket, or a healthy unit."""
TapeDepth = Literal["Decisions", "Contributions"]
"""What the event tape holds: every event and decision, or also the contributions, so that Θ can be computed again."""


class SyncerAddress(Section):
    """Where a shard of the syncer listens and what its certificate says."""

    host: str
    port: int = SYNCER_PORT
    status_port: int = STATUS_PORT
    health_port: int = HEALTH_PORT
    transfer_port: int = TRANSFER_PORT


class RunContract(Section):
    """What every pod of a run is told (`run.json`)."""

    name: ShortName
    namespace: ShortName
    uid: str
    """The TrainingRun's uid. A journal with another uid is not of this run."""
    model: ModelSpec
    data: DataSpec
    inner: InnerSpec
    outer: OuterSpec
    communication: CommunicationSpec = CommunicationSpec()
    quorum: QuorumSpec
    target: TargetSpec
    checkpoint: CheckpointSpec
    shards: Annotated[tuple[SyncerAddress, ...], Field(min_length=1, max_length=64)]
    """The syncer's shards. Each owns whole pieces of every fragment."""
    seed: SeedSource = "Checkpoint"
    startup_seconds: int = 1800
    """Most seconds from running pods until all hosts of a unit are connected. They must get their state in less."""
    tape: TapeDepth = "Decisions"
    audit: Annotated[int, Field(ge=1)] | None = None
    """Global steps between two audits of the units' results. None: no audits."""

    @model_validator(mode="after")
    def _codecs(self) -> Self:
        """Raises `ValueError` if units would use a wider codec than the run's."""
        codec, widest = self.communication.codec, self.outer.codec
        codecs = get_args(Codec)
        if codec is not None and codecs.index(codec) < codecs.index(widest):
            raise ValueError(f"communication.codec: {codec} is wider than outer.codec, which is {widest}")
        return self


class UnitContract(Section):
    """What one learner pod is told in addition (`ATOLL_UNIT`)."""

    unit: ShortName
    incarnation: Annotated[int, Field(ge=1)]
    """Incarnation at the creation of the gang. `INCARNATION_FILE` has later ones in the same pods."""
    host: Annotated[int, Field(ge=0)]
    """0-based index of this pod in its gang."""
    hosts: Annotated[int, Field(ge=1)]
    chips: Annotated[int, Field(ge=0)] = 0
    """TPU chips of this host. 0: any devices."""
    coordinator: str
    """`name:port` of host 0 for `jax.distributed`."""
    address: str = ""
    """`name:port` where other units get this host's snapshots; the certificate names the unit. Empty: nowhere."""
    host_names: str = ""
    """DNS name of a host of the unit, with `{}` for its index. Empty: no libtpu needs it."""
    slice_hosts: Annotated[int, Field(ge=0)] = 0
    """Hosts of a slice, with `host_names`."""
    batch: Annotated[int, Field(ge=1)]
    """Sequences of the whole unit in one inner step. Need not be a multiple of its devices."""
    stream: Annotated[int, Field(ge=0)]
    """The unit's slot among `streams` disjoint data streams."""
    streams: Annotated[int, Field(ge=1)]

    def host_lists(self) -> dict[str, str]:
        """libtpu's variables that list the hosts of this host's slice by DNS name, in order."""
        if not self.host_names:
            return {}
        first = self.host // self.slice_hosts * self.slice_hosts
        names = [self.host_names.format(host) for host in range(first, first + self.slice_hosts)]
        addresses = ",".join(f"{name}:{LIBTPU_PORT}" for name in names)
        return {"TPU_WORKER_HOSTNAMES": ",".join(names), "TPU_PROCESS_ADDRESSES": addresses}


class SyncerContract(Section):
    """What a syncer's pod is told in addition (`ATOLL_SYNCER`)."""

    batches: dict[ShortName, Annotated[tuple[int, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Sequences of one step, by the name of a unit, or by the part of unit names before the number for all units of a
    pool. More than one value while a pool's batch is being changed. Units without an entry have at most the largest of
    these."""


class EvaluationContract(EvaluationSpec):
    """What the evaluator's pod is told in addition (`ATOLL_EVALUATION`)."""

    status_port: int = STATUS_PORT
    health_port: int = HEALTH_PORT


class Order(Section):
    """What the operator asks of shard 0 (`POST /status`)."""

    cut: Annotated[int, Field(ge=0)]
    """Begin a cut of this global step or a later one, unless one of such a step is complete or under way."""


S = TypeVar("S", bound=Section)


def dump(section: BaseModel) -> str:
    """Compact JSON as it goes over the wire."""
    return section.model_dump_json(by_alias=True, exclude_none=True)


def brief(section: BaseModel) -> str:
    """Compact JSON without values at their default. So a pod may be older than its operator, as long as the run uses no
    field that the pod does not know."""
    return section.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)


class VersionMismatch(Exception):
    """This process is of another version than the operator or the syncer that it talks to."""


def problems(error: ValidationError, *path: str) -> str:
    """The first problems of a document, each with its field and, unless the field itself is unknown, a single value.
    `path`: where the document is in another one."""
    found = []
    for each in error.errors()[:5]:
        words, value = [".".join(map(str, (*path, *each["loc"])))], each["input"]
        if each["loc"] and each["type"] != "extra_forbidden" and isinstance(value, (str, int, float)):
            words.append(f"{value!r:.100}")
        found.append(": ".join(filter(None, (*words, each["msg"]))))
    return "; ".join(found)


def _parse(kind: type[S], name: str, text: str | bytes) -> S:
    """Raises `VersionMismatch` naming each field that cannot be read."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise VersionMismatch(
            f"{name}: {problems(error)}. The operator that wrote it is of another version than this image: set "
            "spec.image to one of the operator's version, or leave these fields out of the run"
        ) from error


parse_run = partial(_parse, RunContract, "run.json")
parse_unit = partial(_parse, UnitContract, ENV_UNIT)
parse_syncer = partial(_parse, SyncerContract, ENV_SYNCER)
parse_evaluation = partial(_parse, EvaluationContract, ENV_EVALUATION)
