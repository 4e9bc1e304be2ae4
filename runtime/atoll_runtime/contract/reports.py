"""What syncer and evaluator report to the operator (`GET /status`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from atoll_runtime.contract.section import Section

MOST_UNITS = 8192
"""The most units in a run's life: twice those of 16 pools of 256. The token ledger keeps units that never return."""
MOST_REASONS = 16
"""The most reasons by which a report or a status counts something."""
ReportedUri = Annotated[str, Field(max_length=1024)]
ReportedQuorum = Annotated[str, Field(max_length=128)]
"""The operator copies what has these types into a status, which has them too."""
Told = Annotated[str, AfterValidator(lambda text: text[:4096])]
Remark = Annotated[str, AfterValidator(lambda text: text[:512])]
"""Texts for people, of a run and of a unit, cut to these lengths."""
UnitName = Annotated[str, Field(max_length=63)]
ReasonName = Annotated[str, Field(max_length=63)]
OTHER = "Other"
"""The reason of what would be one reason too many."""
MOST_WAITS = 64
"""The most fragments of a unit that are listed because their tokens wait for its link."""
ALL_WAITS = 1 << 14
"""The most of these in a report, so that the operator can read it."""


def most_waits(units: int) -> int:
    """The most of them that each of so many units lists: above 256 units fewer than `MOST_WAITS`."""
    return min(MOST_WAITS, ALL_WAITS // max(units, 1))


class NoReport(Exception):
    """A value of a report that cannot be read."""


class Report(BaseModel):
    """A part of a report. The reader ignores unknown keys, which a newer syncer may send.

    Lists and tables fail at their first wrong item (`FailFast`). pydantic would collect an error for each item, in
    thousands of times the bytes of the report, and a run's own image decides what its syncer reports.
    """

    model_config = Section.model_config | ConfigDict(extra="ignore", allow_inf_nan=False)

    @classmethod
    def read(cls, text: bytes | str) -> Self:
        """The report in a JSON document. Raises `NoReport`."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise NoReport(f"{error.errors(include_input=False, include_url=False)[:3]}") from None


Measured = Annotated[float, AfterValidator(lambda value: float(f"{value:.3g}"))]
"""A figure with three significant digits. Measurements of a link have no more."""


class BeginningReport(Report):
    """How an incarnation came to its first step, as its host 0 saw it."""

    joined: float
    """Unix seconds at which all hosts were one mesh."""
    stepped: float
    """Unix seconds at which the first step had ended."""
    compiling: float
    """Seconds between the two in which programs were compiled or loaded."""
    compiled: int = 0
    """Programs compiled."""
    loaded: int = 0
    """Programs loaded from the cache."""


class WaitReport(Report):
    """Tokens of one fragment that wait for a unit's link."""

    fragment: int
    """Number of the fragment."""
    tokens: int
    """Number of tokens that wait."""
    since: int
    """Global step since which they wait."""
    what: Annotated[str, Field(max_length=128)]
    """What they wait for."""


class LinkReport(Report):
    """The link between a unit's host 0 and the syncer, as its transfers of the last five minutes show it. The round
    trip is kept until a newer one is known."""

    up_gbps: Measured = 0.0
    """Largest rate to the syncer in Gbit/s; 0 if nothing was sent."""
    down_gbps: Measured = 0.0
    """Largest rate from the syncer in Gbit/s; 0 if nothing was fetched."""
    rtt_seconds: Measured = 0.0
    """Shortest time between a request and the first byte of its answer."""
    busy_share: Measured = 0.0
    """Share of the time with a transfer under way, in the busier direction."""
    failures: int = 0
    """Broken sessions, transfers and connections of transfers of this incarnation. A transfer goes on over another
    connection."""
    codec: Annotated[str, Field(max_length=16)] = ""
    """Encoding of the unit's fragments on the network; empty before the first was sent."""
    fetch: Annotated[str, Field(max_length=16)] = ""
    """Encoding of the versions that the unit fetches."""
    streams: int = 0
    """TCP connections of one transfer."""
    chunk_kib: int = 0
    """KiB that a connection sends at a time."""
    period: Measured = 0.0
    """The unit takes part in one of this many rounds of each fragment."""
    load: Measured = 0.0
    """Share of an interval that transfers of every round take with this codec, in the slower direction."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """Why the unit uses its link like this."""
    advice: Annotated[str, Field(max_length=256)] = ""
    """What to set instead, if a setting does not fit the link; empty otherwise."""


class UnitReport(Report):
    """One unit, as the syncer sees it."""

    incarnation: Annotated[int, Field(lt=1 << 63)]
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
    refused: int = 0
    """Contributions of all incarnations that were refused for their claims or their norm."""
    refusals: Annotated[dict[ReasonName, int], Field(max_length=MOST_REASONS), FailFast()] = {}
    """The same by reason: `tokens`, `steps`, `norm`."""
    repeated: int = 0
    """Contributions of all incarnations that were not taken because their work is merged already."""
    suspect: Remark = ""
    """Why the results of this incarnation are not trusted; empty if they are."""
    slow: Remark = ""
    """Why its steps do not set the interval (they take far longer than those of most units); empty if they may."""
    staleness: int = 0
    """Global steps since its last merge."""
    seeded_step: int | None = None
    """Global step of the checkpoint it was seeded from."""
    seed_message: Remark = ""
    """A remark about the seed, such as a checkpoint that was skipped and why."""
    first_merge_time: float | None = None
    """Unix seconds of the first merge of this incarnation."""
    beginning: BeginningReport | None = None
    """How this incarnation came to its first step; None before the second step."""
    link: LinkReport = LinkReport()
    waits: Annotated[list[WaitReport], FailFast(), AfterValidator(lambda waits: waits[:MOST_WAITS])] = []
    """Tokens in flight that wait for the unit's link, by fragment; the first 64, or fewer. Others in flight are
    for the next round of their fragment."""


class CheckpointReport(Report):
    newest_step: int | None = None
    uri: ReportedUri = ""
    error: Told = ""
    """Why the last save failed; empty after a successful one."""
    current: bool = False
    """The newest checkpoint holds every merge, and no learner is connected that could bring another."""


class LedgerReport(Report):
    """What became of the tokens of all incarnations of a unit. In token-fragments: a token counts once per fragment.

    `trained` = `merged` + the sum of `discarded` + `in_flight`, at every instant.
    """

    trained: int = 0
    """Trained token-fragments, over all incarnations."""
    merged: int = 0
    """Merged into the global model."""
    discarded: Annotated[dict[ReasonName, int], Field(max_length=MOST_REASONS), FailFast()] = {}
    """Discarded, by reason: `Missed`, `Refused`, `Replaced`, `Finished` (`protocol/ledger.py`)."""
    in_flight: int = 0
    """Trained, but neither merged nor discarded yet."""

    @classmethod
    def total(cls, parts: Iterable[LedgerReport]) -> LedgerReport:
        """The sum of several ledgers. It balances if each of them does. If they name too many reasons, `OTHER` has the
        rest."""
        sums, discarded = Counter[str](), Counter[str]()
        for part in parts:
            for name in ("trained", "merged", "in_flight"):
                sums[name] += getattr(part, name)
            for reason, tokens in part.discarded.items():
                discarded[reason] += tokens
        named = Counter(dict(discarded.most_common(MOST_REASONS - 1)))
        if rest := discarded.total() - named.total():
            named[OTHER] += rest
        return cls(**sums, discarded=dict(named))


class SyncerStatus(Report):
    """`GET /status` of a shard of the syncer. Shard 0 reports on the whole run."""

    run_uid: str
    phase: Literal["Starting", "Running", "Finishing", "Finished", "Failed"]
    """`Finished` only after the final float32 cut is in the bucket with its manifest."""
    message: Told = ""
    """Why it is in this phase, or why the current round is waiting."""
    down: Told = ""
    """Other shards that have no session with shard 0, and since when."""
    global_step: int = 0
    target_steps: int | None = None
    tokens: int = 0
    """Tokens merged."""
    loss: float | None = None
    """Token-weighted mean of the live units' last training losses."""
    tokens_per_second: float = 0.0
    quorum: ReportedQuorum = ""
    """Members of the last merged round, such as `3/3 (K=2)`."""
    rounds: int = 0
    real_interval: float = 0.0
    """Measured inner steps between two merges of the same fragment (pitfall 1: H collapses on fast networks)."""
    bytes_in: int = 0
    bytes_out: int = 0
    restarts: int = 0
    """Times that the syncer resumed from its journal."""
    checkpoint: CheckpointReport = CheckpointReport()
    units: Annotated[dict[UnitName, UnitReport], Field(max_length=MOST_UNITS), FailFast()] = {}
    shard: int = 0
    shards: int = 1
    fragments: int = 0
    """Fragments of which the shard owns a part. Its ledger counts each token this many times."""
    ledger: Annotated[dict[UnitName, LedgerReport], Field(max_length=MOST_UNITS), FailFast()] = {}
    """By unit."""
    final_checkpoint: ReportedUri = ""
    """URI of the final cut, when `Finished`."""
    time: float = 0.0
    """Unix seconds of this report."""


class EvaluationReport(Report):
    """The result of the global model of one checkpoint on the evaluation data."""

    step: int
    """Global step of the checkpoint."""
    loss: float | None = None
    """Loss in nats per token; absent if it is not finite."""
    tokens: int
    """Predicted tokens over which the loss is the mean."""
    split: Annotated[str, Field(max_length=63)]
    """Split of the data set, as `spec.evaluation` names it."""
    seconds: float
    """Seconds to read and evaluate the checkpoint."""
    time: float
    """Unix seconds of the result."""


class EvaluatorStatus(Report):
    """`GET /status` of the evaluator."""

    run_uid: str
    phase: Literal["Starting", "Waiting", "Evaluating"]
    message: Told = ""
    """What it does or waits for."""
    error: Told = ""
    """Why the newest checkpoint could not be evaluated, or the bucket not be used; empty after a successful attempt."""
    newest: EvaluationReport | None = None
    """Result of the newest checkpoint that was evaluated."""
    evaluated: int = 0
    """Evaluated checkpoints in the bucket."""
    skipped: int = 0
    """Checkpoints that this process listed but that were removed from the bucket before their turn."""
