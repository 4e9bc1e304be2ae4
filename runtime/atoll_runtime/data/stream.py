"""The example that a unit reads at a cursor, a pure function of seed, stream and cursor.

A run that grows adds streams and changes none that is being read. Stream s of n has the examples s, s + n, s + 2n, … of
the epoch's permutation. It reads first the half that is stream s of 2n, then, in reverse order, the half that is stream
s + n of 2n. So the two divisions are compatible. A unit that joins with stream s + n of 2n begins with the examples
that the reader of s of n reads last. The two meet when both halves have been read once. After that they read the same
examples: in each epoch, both read the examples / 2n of the unit that joined.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUNDS = 4
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Stream:
    """One of `streams` disjoint streams over `examples`. Each epoch is a new permutation.

    It is disjoint from all other streams of this division, and from stream t of a finer one (streams · 2ᵏ) if
    t % streams is not this stream. If it is, they are disjoint for the part of an epoch before t's examples.
    """

    examples: int
    seed: int
    stream: int
    streams: int

    def __post_init__(self) -> None:
        if not 0 <= self.stream < self.streams:
            raise ValueError(f"stream {self.stream}: must be within 0 … {self.streams - 1}")
        if self.examples < self.streams:
            raise ValueError(
                f"examples: {self.examples} are too few for {self.streams} streams, of which each unit reads one; more "
                "data, a smaller data.sequenceLength or fewer units are wanted"
            )

    @property
    def per_epoch(self) -> int:
        """Examples of this stream in one epoch. The remainder of the division is not read in that epoch."""
        return self.examples // self.streams

    def index(self, cursor: int) -> int:
        """The example at `cursor`, the number of this stream's sequences read since the run began."""
        epoch, position = divmod(cursor, self.per_epoch)
        place = spread(position, self.per_epoch)
        return permute(place * self.streams + self.stream, self.examples, self.seed, epoch)


def spread(rank: int, length: int) -> int:
    """A bijection of [0, length): even places first, then odd ones from the end, and the same within each half."""
    place, stride = 0, 1
    while length > 1:
        even = (length + 1) // 2
        if rank < even:
            length = even
        else:
            place, rank, length = place + stride, length - 1 - rank, length - even
        stride *= 2
    return place


def permute(index: int, size: int, seed: int, epoch: int) -> int:
    """A bijection of [0, size): a Feistel network on an even number of bits, applied until the result is below `size`.

    The network's domain is less than 4·size, so it is applied fewer than four times on average.
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
