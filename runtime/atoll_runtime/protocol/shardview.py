"""A learner host's end of the protocol with one shard: what it holds, wants, and was asked for. Pure.

The client guards it with a lock (`learner/signals.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atoll_runtime.protocol.identifiers import NO_CUT, NOTHING, CutId, RoundId


@dataclass(frozen=True)
class PullRequest:
    """An open round that wants this unit's fragment."""

    round: RoundId
    least: int
    """The oldest anchor that a contribution may have."""


@dataclass(frozen=True)
class FetchTask:
    """A fragment to fetch, in this version or a newer one."""

    fragment: int
    version: int
    newest: int
    """Version that the shard is known to have, and will send if there is no newer one."""


@dataclass
class ShardView:
    """Versions are the shard's global steps; a lineage names the history that they belong to."""

    held: list[int]
    """Version of each fragment that is completely here, adopted by the training loop or not. NOTHING: it is of another
    lineage, or of merges that the shard has lost."""
    adopted: list[int] = field(default_factory=list)
    """Version of each fragment that the training loop has taken; NOTHING as above."""
    lineage: str = ""
    """Lineage of what is held; empty: not known yet."""
    empty: frozenset[int] = frozenset()
    """Fragments without elements, which are never fetched."""
    offered: list[int] = field(default_factory=list)
    """Newest version of each fragment that the shard is known to have."""
    series: str = ""
    """Life of the shard in which the last session began; empty before the first. What was fetched in another life may
    be of a history that ended, and is fetched again."""
    linked: bool = False
    """There is a session. Without one no fetch begins."""
    wanted: dict[int, int] = field(default_factory=dict)
    contested: Collection[int] = ()
    """Fragments of which hosts of the unit have different versions. While there are any, no other is fetched: else a
    host that fetches one later than the others gets a version that is newer again."""
    asks: dict[int, PullRequest] = field(default_factory=dict)
    open: set[RoundId] = field(default_factory=set)
    cut: CutId = NO_CUT
    """The newest cut for which the shard is known to have recorded itself."""
    merged: int = 0
    """The most merged tokens of all units that the shard has reported."""

    def __post_init__(self) -> None:
        self.adopted = self.adopted or list(self.held)
        self.offered = self.offered or list(self.held)

    def welcomed(
        self,
        lineage: str,
        versions: Sequence[int],
        least: Sequence[int],
        cut: CutId,
        series: str = "",
        taking: Iterable[RoundId] = (),
    ) -> bool:
        """A session begins. Returns whether versions that were fetched but not adopted belong to a history that ended.

        `least`: for each fragment the oldest anchor that a contribution of this unit may have. `taking`: rounds that
        have an answer of this host; other rounds that it has answered are over.

        A shard that lost its journal shows another lineage, and its versions are other arrays. A shard that lost only
        its newest merges shows the same lineage with older versions. It no longer knows newer versions that are here.
        It still has all that it has offered in the same life (`series`), which may be newer than `versions`.
        """
        if series == self.series:
            versions = [max(each) for each in zip(versions, self.offered, strict=True)]
        ended = bool(self.lineage) and self.lineage != lineage
        if ended:
            self._forget(range(len(self.held)))
        elif any(max(self.held[p], self.offered[p]) > version for p, version in enumerate(versions)):
            ended = True
            self._forget(p for p, version in enumerate(versions) if self.adopted[p] > version)
        self.lineage, self.series, self.offered, self.linked = lineage, series, list(versions), True
        self.open.intersection_update(taking)
        self.marked(cut)
        for p, needed in enumerate(least):
            self.need(p, needed)
        return ended

    def _forget(self, lost: Iterable[int]) -> None:
        """A history ended. The adopted versions of the `lost` fragments belong to it. Versions that are fetched but not
        adopted are dropped on every host."""
        for p in lost:
            if p not in self.empty:
                self.adopted[p] = NOTHING
        self.held = list(self.adopted)
        self.wanted.clear()

    def disconnected(self) -> None:
        """A session ended. Its asks are void, and the next session asks again. Answers may still be taken."""
        self.linked = False
        self.open.difference_update(ask.round for ask in self.asks.values())
        self.asks.clear()

    def asked(self, round_id: RoundId, least: int) -> None:
        """A round is open."""
        p = round_id.fragment
        self.offered[p] = max(least, self.offered[p])
        self.need(p, least)
        self.asks[p] = PullRequest(round_id, least)
        self.open.add(round_id)

    def over(self, round_id: RoundId) -> None:
        """A round was frozen without this unit, merged or discarded."""
        self.open.discard(round_id)
        ask = self.asks.get(round_id.fragment)
        if ask is not None and ask.round == round_id:
            del self.asks[round_id.fragment]

    def announced(self, p: int, version: int, least: int) -> None:
        """A version can be fetched. It is not while what is held can be an anchor: it would replace work that can still
        be contributed."""
        self.offered[p] = max(version, self.offered[p])
        self.need(p, least)

    def need(self, p: int, least: int) -> None:
        """A version older than `least` is of no use any more."""
        if p not in self.empty and least > self.held[p]:
            self.wanted[p] = max(least, self.wanted.get(p, 0))

    def contest(self, versions: Mapping[int, int]) -> None:
        """All hosts have agreed that not all have or fetch these versions, which are the newest that any does. Those
        that the shard is not known to have may be of a history that ended."""
        known = {p: version for p, version in versions.items() if version <= self.offered[p]}
        self.contested = known.keys()
        for p, version in known.items():
            self.need(p, version)

    def marked(self, cut: CutId) -> None:
        """The shard has recorded itself for `cut`. It sent everything that comes from now on after that."""
        self.cut = max(self.cut, cut)

    def counted(self, merged: int) -> None:
        """The shard's merged tokens. If the shard falls back, the learning rate does not."""
        self.merged = max(self.merged, merged)

    def fetch_task(self, under_way: Collection[int] = ()) -> FetchTask | None:
        """The fragment to fetch next, except those that are under way."""
        if not (self.wanted and self.linked):
            return None
        left = (p for p in self.contested or self.wanted if p in self.wanted and p not in under_way)
        return next((FetchTask(p, self.wanted[p], self.offered[p]) for p in left), None)

    def postpone(self, fetch_task: FetchTask) -> None:
        """The other fragments come first now, because this fetch failed, or a newer version is wanted already."""
        if fetch_task.fragment in self.wanted:
            self.wanted[fetch_task.fragment] = self.wanted.pop(fetch_task.fragment)

    def fetched(self, fetch_task: FetchTask, version: int, cut: CutId, series: str = "") -> bool:
        """A fragment arrived; true if it is news."""
        p = fetch_task.fragment
        if series != self.series:
            return False
        self.marked(cut)
        self.offered[p] = max(version, self.offered[p])
        if self.wanted.get(p, 0) <= max(fetch_task.version, version):
            self.wanted.pop(p, None)
        self.postpone(fetch_task)  # on a slow link a newer version may be wanted already
        if version <= self.held[p]:
            return False  # it arrived twice, or a newer one overtook it
        self.held[p] = version
        return True

    def adopt(self, p: int, version: int, lineage: str) -> None:
        """The training loop has adopted what a fetch in `lineage` brought. It is the anchor now."""
        if lineage != self.lineage:
            return
        if version <= self.offered[p]:
            self.adopted[p] = version
            self.held[p] = max(self.held[p], version)
        else:  # the hosts had agreed on it before the shard came back without it
            self.adopted[p] = self.held[p] = NOTHING
            self.need(p, self.offered[p])

    def answerable(self) -> dict[int, PullRequest]:
        """Open rounds that the unit can answer when it has adopted what is here.

        It then has their least anchor, has adopted a version of this history before, and no answer to an earlier
        round of the fragment still counts.
        """
        if not self.asks:
            return {}
        answered = {
            round_id.fragment for round_id in self.open.difference(ask.round for ask in self.asks.values())
        }
        return {
            p: ask
            for p, ask in self.asks.items()
            if self.adopted[p] != NOTHING and self.held[p] >= ask.least and p not in answered
        }

    def answered(self, round_id: RoundId) -> bool:
        """The loop has a contribution; false if it is too late to send it."""
        p = round_id.fragment
        if p in self.asks and self.asks[p].round == round_id:
            del self.asks[p]
        if self.adopted[p] == NOTHING:
            self.open.discard(round_id)
        return round_id in self.open
