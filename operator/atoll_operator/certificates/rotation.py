"""When certificates are renewed, and how one authority of a run replaces another. Pure: time is passed in."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

LEAF_LIFE = datetime.timedelta(days=90)
"""Lifetime of a pod's certificate. It is renewed with 30 days left, so the operator may be down for that long."""
AUTHORITY_LIFE = datetime.timedelta(days=3 * 365)
DELIVERY = datetime.timedelta(days=1)
"""A new authority signs nothing before this time, so that every pod trusts it by then. The kubelet updates a changed
Secret within two minutes, but a node may be cut off for hours."""


@dataclass(frozen=True, slots=True)
class Life:
    """The validity period of a certificate."""

    begins: datetime.datetime
    ends: datetime.datetime

    def due(self, now: datetime.datetime) -> bool:
        """Whether a third of the lifetime or less is left."""
        return self.ends - now <= (self.ends - self.begins) / 3


@dataclass(frozen=True, slots=True)
class Succession:
    """Which of a run's authorities to use, as indices into the list."""

    trusted: tuple[int, ...]
    signer: int | None
    """None: all have expired; the new one signs at once."""
    successor: bool
    """Whether a new one must be created."""


def succession(authorities: Sequence[Life], now: datetime.datetime) -> Succession:
    """Decide from the authorities, oldest first. Every one that may have signed a valid certificate is trusted."""
    trusted = tuple(place for place, life in enumerate(authorities) if life.ends > now)
    known = [place for place in trusted if authorities[place].begins + DELIVERY <= now]
    signer = known[-1] if known else trusted[0] if trusted else None
    return Succession(trusted, signer, not trusted or authorities[trusted[-1]].due(now))
