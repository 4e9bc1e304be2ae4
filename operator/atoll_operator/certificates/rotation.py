"""When a certificate is renewed, and how one authority of a run follows another. Pure: the time is passed in."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

LEAF_LIFE = datetime.timedelta(days=90)
"""Of a pod's certificate. At least 30 days are left when it is renewed, for an operator that is down meanwhile."""
AUTHORITY_LIFE = datetime.timedelta(days=3 * 365)
DELIVERY = datetime.timedelta(days=1)
"""A new authority signs nothing before every pod can have got to know it: the kubelet brings a changed Secret within
two minutes, and a node may be cut off for hours."""


@dataclass(frozen=True, slots=True)
class Life:
    """From when to when a certificate is valid."""

    begins: datetime.datetime
    ends: datetime.datetime

    def due(self, now: datetime.datetime) -> bool:
        """Whether a third of the life or less is left."""
        return self.ends - now <= (self.ends - self.begins) / 3


@dataclass(frozen=True, slots=True)
class Succession:
    """Of a run's authorities, by their place in the list."""

    trusted: tuple[int, ...]
    signer: int | None
    """None: all have expired; the successor signs at once."""
    successor: bool
    """Whether another one has to be made."""


def succession(authorities: Sequence[Life], now: datetime.datetime) -> Succession:
    """Oldest first. Those trusted are never fewer than those that a certificate in use may be signed by."""
    trusted = tuple(place for place, life in enumerate(authorities) if life.ends > now)
    known = [place for place in trusted if authorities[place].begins + DELIVERY <= now]
    signer = known[-1] if known else trusted[0] if trusted else None
    return Succession(trusted, signer, not trusted or authorities[trusted[-1]].due(now))
