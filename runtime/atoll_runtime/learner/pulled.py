"""Assembles a peer's state from the parts of all its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_runtime.checkpoint.units import Moments, tile
from atoll_runtime.protocol.fragments import Array, Layout
from atoll_runtime.transport.peer import Piece
from atoll_runtime.transport.transport import TransportError


@dataclass(frozen=True, slots=True)
class Pulled:
    """A peer's whole state: its anchors as θ, and its moments."""

    unit: str
    versions: tuple[int, ...]
    theta: dict[str, Array]
    moments: Moments


class Assembly:
    """Collects parts of all hosts of a peer. A fragment is complete when all hosts sent the same version."""

    def __init__(self, layout: Layout, hosts: int, least: Sequence[int]) -> None:
        self._layout, self._hosts, self._least = layout, hosts, tuple(least)
        self.missing = {number for number, fragment in enumerate(layout.fragments) if fragment.size > 0}
        self._parts: dict[int, dict[int, Piece]] = {number: {} for number in self.missing}
        self._versions = list(least)
        self._count = 0
        self._theta: dict[str, Array] = {}
        self._mu: dict[str, Array] = {}
        self._nu: dict[str, Array] = {}

    def add(self, host: int, piece: Piece) -> None:
        """Adds a part. Raises `TransportError` if it does not fit the others, is too old, or is not finite."""
        number = piece.head.number
        if number not in self.missing:
            return
        if piece.head.version < self._least[number]:
            raise TransportError(
                f"fragment {number} came at version {piece.head.version}, {self._least[number]} was asked for"
            )
        parts = self._parts[number]
        parts[host] = piece
        if len(parts) < self._hosts or len({part.head.version for part in parts.values()}) > 1:
            return
        size = self._layout.fragments[number].size
        for kind, tensors in (("anchor", self._theta), ("mu", self._mu), ("nu", self._nu)):
            held = [(part.head.start, part.head.stop, getattr(part, kind)) for part in parts.values()]
            try:
                flat = tile(held, size)
            except ValueError as error:
                raise TransportError(f"{kind} of fragment {number}: {error}") from error
            self._layout.unflatten(number, flat, tensors)
        self._versions[number] = piece.head.version
        self._count = max(self._count, *(part.head.count for part in parts.values()))
        self.missing.remove(number)
        del self._parts[number]

    def pulled(self, unit: str) -> Pulled:
        """The whole state; nothing may be missing."""
        return Pulled(unit, tuple(self._versions), self._theta, Moments(self._mu, self._nu, self._count))
