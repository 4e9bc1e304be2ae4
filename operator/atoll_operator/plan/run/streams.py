"""Which stream of the data each unit reads, for as long as the run lives.

A unit keeps its stream when others come and go, and gets it back when it comes back itself: running units are not
touched, and a unit that was scaled away goes on where it stopped. `atoll_runtime.data.stream` says how much of an
epoch a finer division repeats; a stream whose unit is away is read by nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from atoll_operator.api.learnerunit import MAX_STREAM
from atoll_operator.api.trainingrun import StreamRange, StreamsStatus

Slot = tuple[str, int]
"""Pool and index of a unit."""


def streams_of(stream: int, base: int) -> int:
    """The coarsest division base · 2ᵏ that has this stream."""
    division = base
    while division <= stream:
        division *= 2
    return division


def deal(
    old: StreamsStatus | None,
    known: Mapping[Slot, tuple[int, int]],
    wanted: Sequence[Slot],
    others: Collection[int] = (),
) -> StreamsStatus:
    """Every wanted slot has a stream; those of slots that are gone are kept for their return.

    Args:
        old: what the status says; None on the first visit.
        known: stream and division of the units that exist, which a status that was not written may lack.
        wanted: slots in the order in which new streams are dealt.
        others: streams of units that were made by hand; new ones are dealt around them.
    """
    if old is not None:
        base = old.base
    else:
        base = min((division for _, division in known.values()), default=max(len(wanted), 1))
    dealt = {slot: stream for slot, (stream, _) in known.items()} | table(old)
    if len(dealt.keys() | set(wanted)) > MAX_STREAM + 1:  # twice what a run may have at once
        pools = {pool for pool, _ in wanted}
        dealt = {slot: stream for slot, stream in dealt.items() if slot in known or slot[0] in pools}
    taken = {*dealt.values(), *others}
    free = (stream for stream in range(MAX_STREAM + 1) if stream not in taken)
    for slot in wanted:
        if slot not in dealt:
            dealt[slot] = next(free)
    return StreamsStatus(base=base, dealt=tuple(_ranges(dealt)))


def table(status: StreamsStatus | None) -> dict[Slot, int]:
    """Slot to stream."""
    if status is None:
        return {}
    return {
        (each.pool, each.index + offset): each.stream + offset
        for each in status.dealt
        for offset in range(each.units)
    }


def _ranges(dealt: Mapping[Slot, int]) -> Iterable[StreamRange]:
    """The table by pool, neighbours together."""
    last: StreamRange | None = None
    for (pool, index), stream in sorted(dealt.items()):
        if last is not None and (pool, index, stream) == (
            last.pool,
            last.index + last.units,
            last.stream + last.units,
        ):
            last = last.model_copy(update={"units": last.units + 1})
            continue
        if last is not None:
            yield last
        last = StreamRange(pool=pool, index=index, units=1, stream=stream)
    if last is not None:
        yield last
