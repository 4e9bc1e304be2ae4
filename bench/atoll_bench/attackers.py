"""A learner's client that sends wrong contributions or reports: what the syncer makes of them is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.protocol.link import Ask
from atoll_runtime.protocol.progress import Offer
from atoll_runtime.transport import codecs

SCALE = 1e4
BITS_SHARE = 0.01
"""Part of the elements in which a bit of the exponent flips."""
MOST_STEPS = 10**9
MOST_TOKENS = 10**15
SLOW_SECONDS = 7200.0
"""That a step is reported to take."""


class Attacker(SyncerClient):
    """The client of one unit. Each kind of attack is a subclass that changes one thing."""

    seed = 0

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.chance = np.random.default_rng(self.seed)

    def contribute(
        self, number: int, ask: Ask, codec: str, body: memoryview, offer: Offer, cursor: int
    ) -> None:
        changed, told = self.change(number, np.array(codecs.view(body, codec)), offer)
        super().contribute(number, ask, codec, codecs.pack(changed, codec), told, cursor)

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        """What is sent in place of this contribution to a fragment; `values` may be written to."""
        return values, offer


class NotFinite(Attacker):
    """One element is NaN, in the next contribution infinite."""

    turn = False

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        self.turn = not self.turn
        values[self.chance.integers(values.size)] = np.nan if self.turn else np.inf
        return values, offer


class Scaled(Attacker):
    """Ten thousand times as long."""

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        return (values.astype(np.float32) * SCALE).astype(values.dtype), offer


class Flipped(Attacker):
    """In one element of a hundred a bit of the exponent flips."""

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        bits = values.view(np.uint16 if values.itemsize == 2 else np.uint32)
        first = 8 * values.itemsize - 9  # of eight, in bfloat16 and float32
        struck = self.chance.random(bits.size) < BITS_SHARE
        struck[self.chance.integers(bits.size)] = True
        places = self.chance.integers(first, first + 8, np.count_nonzero(struck))
        bits[struck] = bits[struck] ^ np.left_shift(1, places).astype(bits.dtype)
        return values, offer


class Boastful(Attacker):
    """Of each fragment it claims 10⁹ steps with the tokens of its batch at first, which nothing shows to be wrong, and
    10¹⁵ tokens later on."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.begun: set[int] = set()

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        if number in self.begun:
            return values, replace(offer, tokens=MOST_TOKENS // 2, trained=MOST_TOKENS)
        self.begun.add(number)
        tokens = MOST_STEPS * (offer.tokens // offer.steps)
        return values, replace(offer, steps=MOST_STEPS, tokens=tokens, trained=tokens + offer.trained)


class Repeating(Attacker):
    """It sends its first contribution to each fragment again and again."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.first: dict[int, tuple[NDArray[Any], Offer]] = {}

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        return self.first.setdefault(number, (values, offer))


class Dawdling(Attacker):
    """It reports steps of hours."""

    def report(self, step: int, tokens: int, loss: float, step_seconds: float, cursor: int) -> None:
        super().report(step, tokens, loss, SLOW_SECONDS, cursor)


class Opposed(Attacker):
    """It points the other way."""

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        return -values, offer


class Noise(Attacker):
    """Noise of the same norm."""

    def change(self, number: int, values: NDArray[Any], offer: Offer) -> tuple[NDArray[Any], Offer]:
        noise = self.chance.standard_normal(values.size)
        noise *= np.linalg.norm(values.astype(np.float64)) / np.linalg.norm(noise)
        return noise.astype(values.dtype), offer


ATTACKS: dict[str, type[SyncerClient]] = {
    "none": SyncerClient,
    "nan": NotFinite,
    "scale": Scaled,
    "bits": Flipped,
    "tokens": Boastful,
    "replay": Repeating,
    "slow": Dawdling,
    "sign": Opposed,
    "noise": Noise,
}
"""By their names on the command line."""
