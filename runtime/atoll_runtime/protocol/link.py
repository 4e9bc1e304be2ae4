"""A learner host's end of the protocol with one shard: what it holds, wants, and was asked for. Pure.

The client keeps it behind a lock (`learner/signals.py`); the model of a fleet drives it directly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from atoll_runtime.protocol.identifiers import NO_CUT, NOTHING, CutId, RoundId


@dataclass(frozen=True)
class Ask:
    """An open round that wants this unit's fragment."""

    round: RoundId
    least: int
    """Least version that a contribution may be taken against."""


@dataclass(frozen=True)
class Errand:
    """A fragment to be fetched, in this version or a newer one."""

    fragment: int
    version: int
    lineage: str
    setbacks: int = 0
    """Of the shard, before it was thought of."""


@dataclass
class Link:
    """Versions are the shard's global steps; a lineage names the history that they belong to."""

    held: list[int]
    """Version of each fragment that is here whole, taken by the training loop or not. NOTHING: none of the shard's, but
    one of another lineage, or of merges that it has lost."""
    adopted: list[int] = field(default_factory=list)
    """Version of each fragment that the training loop has taken; NOTHING as above."""
    lineage: str = ""
    """Of what is held; empty: not known yet."""
    empty: frozenset[int] = frozenset()
    """Fragments without elements: there is nothing of them to fetch."""
    offered: list[int] = field(default_factory=list)
    """Newest version of each fragment that the shard is known to have."""
    series: str = ""
    """Life of the shard with which the last session began; empty: none has."""
    shown: dict[str, dict[int, int]] = field(default_factory=dict)
    """By life of the shard: the newest version of each fragment that it has shown since the last session began."""
    setbacks: int = 0
    """Times that the shard came back with less than it had shown: its volume was restored, or lost a record."""
    wanted: dict[int, int] = field(default_factory=dict)
    asks: dict[int, Ask] = field(default_factory=dict)
    open: set[RoundId] = field(default_factory=set)
    cut: CutId = NO_CUT
    """The newest cut that the shard is known to have recorded itself for."""
    merged: int = 0
    """Tokens that the shard has merged, of all units, by the furthest that it said."""

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
        """A session begins; true when what was fetched and not adopted yet is of a history that ended.

        `least`: of each fragment the oldest version that a contribution of this unit may be taken against. `taking`:
        rounds that have an answer of this host; others that it has answered are over.

        A shard that lost its journal shows another lineage: its versions are other arrays. One that lost its newest
        merges alone shows the same, with older versions: what is newer here is known to it no more. What it has shown
        in the same life (`series`) it still has: that has overtaken this word.
        """
        shown = self.shown.get(series, {})
        newest = [max(version, shown.get(p, version)) for p, version in enumerate(versions)]
        ended = bool(self.lineage) and self.lineage != lineage
        if ended:
            self._forget(range(len(self.held)))
        elif any(max(self.held[p], self.offered[p]) > version for p, version in enumerate(newest)):
            ended = True
            self.setbacks += 1
            self._forget(p for p, version in enumerate(newest) if self.adopted[p] > version)
        self.lineage, self.series, self.offered, self.shown = lineage, series, newest, {series: shown}
        self.open.intersection_update(taking)
        self.marked(cut)
        for p, needed in enumerate(least):
            self.need(p, needed)
        return ended

    def _forget(self, lost: Iterable[int]) -> None:
        """A history ended, of which what was adopted of these fragments is. What has not been adopted is thrown away,
        on whichever host it is."""
        for p in lost:
            if p not in self.empty:
                self.adopted[p] = NOTHING
        self.held = list(self.adopted)
        self.wanted.clear()

    def disconnected(self) -> None:
        """A session ended: what it asked is void, and the next one asks anew. What was answered may still be taken."""
        self.open.difference_update(ask.round for ask in self.asks.values())
        self.asks.clear()

    def asked(self, round_id: RoundId, least: int) -> None:
        """A round is open."""
        p = round_id.fragment
        self._show(p, least, self.series)
        self.need(p, least)
        self.asks[p] = Ask(round_id, least)
        self.open.add(round_id)

    def over(self, round_id: RoundId) -> None:
        """A round is frozen without this unit, merged or discarded."""
        self.open.discard(round_id)
        ask = self.asks.get(round_id.fragment)
        if ask is not None and ask.round == round_id:
            del self.asks[round_id.fragment]

    def announced(self, p: int, version: int, needed: bool) -> None:
        """A version can be fetched. One that is not needed is left: it would replace work that can be contributed."""
        self._show(p, version, self.series)
        if needed:
            self.need(p, version)

    def _show(self, p: int, version: int, series: str) -> None:
        """A shard has this version in this life."""
        self.offered[p] = max(version, self.offered[p])
        shown = self.shown.setdefault(series, {})
        shown[p] = max(version, shown.get(p, version))

    def need(self, p: int, least: int) -> None:
        """An older version than `least` is of no use any more."""
        if p not in self.empty and least > self.held[p]:
            self.wanted[p] = max(least, self.wanted.get(p, 0))

    def marked(self, cut: CutId) -> None:
        """The shard's marker: what comes after it was sent after its record."""
        self.cut = max(self.cut, cut)

    def counted(self, merged: int) -> None:
        """The shard's merged tokens. A shard that fell back does not lead the learning rate back."""
        self.merged = max(self.merged, merged)

    def errand(self, under_way: Collection[int] = ()) -> Errand | None:
        """The fragment to fetch next, besides those that are under way."""
        for p, version in self.wanted.items():
            if p not in under_way:
                return Errand(p, version, self.lineage, self.setbacks)
        return None

    def postpone(self, errand: Errand) -> None:
        """It did not succeed, or not for long: the others come first."""
        if errand.fragment in self.wanted:
            self.wanted[errand.fragment] = self.wanted.pop(errand.fragment)

    def fetched(self, errand: Errand, version: int, cut: CutId, series: str = "") -> bool:
        """A fragment came; true when it is news. What belongs to a history that ended is fetched again."""
        p = errand.fragment
        if (errand.lineage, errand.setbacks) != (self.lineage, self.setbacks):
            return False
        self.marked(cut)
        self._show(p, version, series)
        if self.wanted.get(p, 0) <= max(errand.version, version):
            self.wanted.pop(p, None)
        self.postpone(errand)  # on a slow link a newer one is wanted already
        if version <= self.held[p]:
            return False  # it came twice, or a newer one overtook it
        self.held[p] = version
        return True

    def adopt(self, p: int, version: int, lineage: str) -> None:
        """The training loop has taken what an errand in `lineage` brought: it is the anchor now."""
        if lineage != self.lineage:
            return
        if version <= self.offered[p]:
            self.adopted[p] = version
            self.held[p] = max(self.held[p], version)
        else:  # the hosts had agreed on it when the shard came back without it
            self.adopted[p] = self.held[p] = NOTHING
            self.need(p, self.offered[p])

    def answerable(self) -> dict[int, Ask]:
        """Open rounds whose least anchor the training loop has taken. Where an answer to an earlier round of the
        fragment still counts, no other is wanted."""
        if not self.asks:
            return {}
        answered = {
            round_id.fragment for round_id in self.open.difference(ask.round for ask in self.asks.values())
        }
        return {p: ask for p, ask in self.asks.items() if self.adopted[p] >= ask.least and p not in answered}

    def answered(self, round_id: RoundId) -> bool:
        """The loop has a contribution: false when it comes too late to be sent."""
        p = round_id.fragment
        if p in self.asks and self.asks[p].round == round_id:
            del self.asks[p]
        if self.adopted[p] == NOTHING:
            self.open.discard(round_id)
        return round_id in self.open
