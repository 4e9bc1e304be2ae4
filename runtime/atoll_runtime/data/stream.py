"""Which example a unit reads at a cursor: a pure function of seed, stream and cursor."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDS = 4
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Stream:
    """One of `streams` disjoint streams over `examples`; each epoch is a new permutation."""

    examples: int
    seed: int
    stream: int
    streams: int

    def __post_init__(self) -> None:
        if not 0 <= self.stream < self.streams:
            raise ValueError(f"stream {self.stream}: must be within 0 … {self.streams - 1}")
        if self.examples < self.streams:
            raise ValueError(f"examples {self.examples}: too few for {self.streams} streams")

    @property
    def per_epoch(self) -> int:
        """Examples of this stream in one epoch; the remainder of the division is left to other epochs."""
        return self.examples // self.streams

    def index(self, cursor: int) -> int:
        """The example at `cursor`, which counts this stream's sequences since the run began."""
        epoch, position = divmod(cursor, self.per_epoch)
        return permute(position * self.streams + self.stream, self.examples, self.seed, epoch)


def permute(index: int, size: int, seed: int, epoch: int) -> int:
    """A bijection of [0, size): a Feistel network on an even number of bits, walked until it lands inside.

    The network's domain is less than 4·size, so the walk takes under four steps on average.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    key = _mix(seed * 0x9E3779B97F4A7C15 + epoch)
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (_mix(key + turn * 0xD1B54A32D192ED03 + right) & mask)
        index = left << half | right
        if index < size:
            return index


def _mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x &= _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31
