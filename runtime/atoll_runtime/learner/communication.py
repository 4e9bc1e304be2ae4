"""Decides how one host uses its link, from measurements of its transfers to all shards."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll_runtime.contract import RunContract
from atoll_runtime.interfaces import Network
from atoll_runtime.protocol.communication import Communication, Observed, Rules, choose
from atoll_runtime.protocol.linkmeter import LinkMeter, LinkReading
from atoll_runtime.protocol.linkshare import LinkShare
from atoll_runtime.protocol.messages import MOST_TURN
from atoll_runtime.protocol.pace import StepTime

log = logging.getLogger(__name__)


class LinkPolicy:
    """Measures and chooses, on the client's event loop; the training loop reads `now`.

    Args:
        elements: of this host's parts of all fragments.
        networks: one for each shard; the policy sets their streams and chunk.
        clock: gives seconds.
    """

    def __init__(
        self, run: RunContract, elements: int, networks: Sequence[Network], clock: Callable[[], float]
    ) -> None:
        self.exact = run.audit is not None
        """Whether all units must hold the same bits of a version."""
        self._rules = Rules(run.communication, run.outer.codec, self.exact)
        self._elements, self._networks, self.clock = elements, networks, clock
        self._interval, self.pace = run.outer.interval, StepTime()
        self.now = Communication.begin(self._rules)
        self.meter = LinkMeter(clock())
        self._shares: list[tuple[LinkShare, float]] = []
        self._tune()

    def share(self, fragments: int, elements: int) -> LinkShare:
        """The share for one shard; `elements`: of this host, in all `fragments` of the shard."""
        share = LinkShare(fragments, period=float(self._rules.fixed.period or 1))
        self._shares.append((share, elements / max(fragments, 1)))
        self._expect()
        return share

    def slower(self, share: LinkShare) -> float:
        """Seconds by which a step of the unit is longer than one of the run's clock. Less than half a step of the clock
        counts as 0: also the unit that sets it is a little slower at times."""
        clock = share.interval / self._interval
        more = (self.pace.value or 0.0) - clock
        return more if more > 0.5 * clock > 0.0 else 0.0

    def turn(self, share: LinkShare) -> float:
        """The unit can be a member of one of this many rounds of each fragment, because its link or its steps take so
        long; 0 if of all."""
        steps = (self.pace.value or 0.0) / (share.interval or math.inf)
        return max(share.turn, min(steps, MOST_TURN) if steps > 1.0 else 0.0)

    def reading(self) -> LinkReading:
        """What was measured of the link, and how it is used."""
        reading = self.meter.reading(self.clock(), self.now.use)
        return replace(reading, failures=reading.failures + sum(each.broken for each in self._networks))

    def look(self) -> None:
        """Chooses again. Call after a measurement, or when time has passed."""
        now, before = self.clock(), self.now
        seen = Observed(
            self.meter.rate("up", now),
            self.meter.rate("down", now),
            self.meter.round_trip(now),
            max((share.interval for share, _ in self._shares), default=0.0),
            self._elements,
            sum(share.fragments for share, _ in self._shares),
        )
        self.now = found = choose(now, before, seen, self._rules)
        if (found.streams, found.chunk_kib) != (before.streams, before.chunk_kib):
            self._tune()
        if found.bits != before.bits:
            log.info("%s from now on: %s", found.codec, found.reason)
            self._expect()

    def _tune(self) -> None:
        for network in self._networks:
            network.tune(self.now.streams, self.now.chunk_kib << 10)

    def _expect(self) -> None:
        """Tells the shares the bits of an average transfer in the present codec."""
        for share, elements in self._shares:
            share.push_bits, share.fetch_bits = (bits * elements for bits in self.now.bits)
