"""Measures held-out loss while one of eight learners attacks, beside that of the clean run, and counts refusals.

The syncer, the learners' loop and their clients run the code of the pods in simulated time (see `atoll bench parity`).
The attacker's client sends wrong contributions or reports.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_bench.parity.trials import Trial
from atoll_runtime.contract import GraceSpec, QuorumSpec
from atoll_runtime.data import write_stdlib
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import LossNotFinite
from atoll_runtime.protocol.progress import Contribution
from atoll_runtime.protocol.rules import COORDINATOR
from atoll_runtime.protocol.shardview import PullRequest
from atoll_runtime.simulate.shard import Stalled
from atoll_runtime.simulate.training.programs import Programs
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.simulate.training.world import World
from atoll_runtime.transport import codecs

SCALE = 1e4
BITS_SHARE = 0.01
"""Share of the elements in which a bit of the exponent flips."""
MOST_STEPS = 10**9
MOST_TOKENS = 10**15
SLOW_SECONDS = 7200.0
"""Reported seconds of a step."""

Sent = tuple[NDArray[Any], Contribution]
"""Values of a contribution, and what it says of itself."""


class Attacker(SyncerClient):
    """The client of one unit, which changes each contribution by its attack."""

    def __init__(self, attack: Attack, *facts: Any) -> None:
        super().__init__(*facts)
        self._attack = attack
        self.chance = np.random.default_rng(0)
        self.first: dict[int, Sent] = {}
        """The first contribution to each fragment, for attacks that need it."""

    def contribute(
        self, number: int, ask: PullRequest, codec: str, body: memoryview, offer: Contribution, *when: int
    ) -> None:
        changed, told = self._attack(self, number, np.array(codecs.view(body, codec)), offer)
        super().contribute(number, ask, codec, codecs.pack(changed, codec), told, *when)


class Dawdling(SyncerClient):
    """It reports that each step takes two hours."""

    def report(self, step: int, steps: int, tokens: int, loss: float, step_seconds: float) -> None:
        super().report(step, steps, tokens, loss, step_seconds)  # its own policy knows its pace
        with self._signals.changing():
            self._sessions[COORDINATOR].report(step, steps, tokens, loss, SLOW_SECONDS)


Attack = Callable[[Attacker, int, NDArray[Any], Contribution], Sent]
"""Takes the attacker, the fragment's number, and a contribution, whose values it may change in place. Returns what is
sent in its place."""


def not_finite(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """One element is NaN or infinite."""
    values[one.chance.integers(values.size)] = one.chance.choice([np.nan, np.inf])
    return values, offer


def scaled(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """The contribution is multiplied by ten thousand."""
    return (values.astype(np.float32) * SCALE).astype(values.dtype), offer


def flipped(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """In one element of a hundred a bit of the exponent flips."""
    bits = values.view(np.uint16 if values.itemsize == 2 else np.uint32)
    first = 8 * values.itemsize - 9  # of the eight bits of the exponent, in bfloat16 and float32
    struck = one.chance.random(bits.size) < BITS_SHARE
    struck[one.chance.integers(bits.size)] = True
    places = one.chance.integers(first, first + 8, np.count_nonzero(struck))
    bits[struck] = bits[struck] ^ np.left_shift(1, places).astype(bits.dtype)
    return values, offer


def boastful(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """In its first contribution to a fragment it claims 10⁹ steps with the tokens of its batch, in later ones 10¹⁵
    tokens."""
    if number in one.first:
        return values, replace(offer, tokens=MOST_TOKENS // 2, trained=MOST_TOKENS)
    one.first[number] = values, offer
    tokens = MOST_STEPS * (offer.tokens // offer.steps)
    return values, replace(offer, steps=MOST_STEPS, tokens=tokens, trained=tokens + offer.trained)


def repeated(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """It sends its first contribution to each fragment again and again."""
    return one.first.setdefault(number, (values, offer))


def opposed(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """The contribution has the opposite sign."""
    return -values, offer


def noise(one: Attacker, number: int, values: NDArray[Any], offer: Contribution) -> Sent:
    """The contribution is noise of the same norm."""
    found = one.chance.standard_normal(values.size)
    found *= np.linalg.norm(values.astype(np.float64)) / np.linalg.norm(found)
    return found.astype(values.dtype), offer


ATTACKS: dict[str, Callable[..., SyncerClient]] = {
    "none": SyncerClient,
    "nan": partial(Attacker, not_finite),
    "scale": partial(Attacker, scaled),
    "bits": partial(Attacker, flipped),
    "tokens": partial(Attacker, boastful),
    "replay": partial(Attacker, repeated),
    "slow": Dawdling,
    "sign": partial(Attacker, opposed),
    "noise": partial(Attacker, noise),
}
"""Makers of clients by the attack's name on the command line."""


LEARNERS = 8
QUORUM = 4
"""K, with the default grace. With K = M no round is merged without the attacker."""
RATE = 16e-3
"""Learning rate that the proof's tuning chose for this size and number of learners."""
CLEAN = "none"


@dataclass(frozen=True)
class Outcome:
    """One line of `atoll bench attacks --json`."""

    attack: str
    seed: int
    loss: float | None
    """Held-out, nats per byte; None if the run did not end or its loss was not finite."""
    clean_loss: float | None
    """The loss with the same seed and no attack."""
    refused: int
    """Contributions of the attacker that were refused."""
    false_refusals: int
    """Refused contributions of the other seven learners."""


def setting(size: str, steps: int, data: str) -> Setting:
    """Eight equal learners with a quorum of four."""
    trial = Trial("attack", size, "decoupled", LEARNERS, "bf16", 0, steps, RATE)
    return replace(trial.setting(data), quorum=QuorumSpec(min=QUORUM, grace=GraceSpec()))


def train(
    trained: Setting, attack: str, seed: int, programs: Programs | None = None
) -> tuple[float | None, int, int]:
    """Returns the loss, and how many contributions of the attacker and of the others were refused. `programs`: see
    `World`."""
    world = World(trained, seed, programs)
    world.islands[-1].client = ATTACKS[attack]
    try:
        loss: float | None = world.train().loss
    except (LossNotFinite, Stalled):
        loss = None
    counts = world.refusals()
    wrong = 0 if attack == CLEAN else counts.pop(world.islands[-1].name, 0)
    return loss, wrong, sum(counts.values())


def measure(attack: Sequence[str], seed: Sequence[int], size: str, steps: int) -> Iterator[Outcome]:
    """Yields each outcome as it is known. The clean run of each seed is always trained first, even if not asked for."""
    logging.disable(logging.WARNING)  # a line for each refusal
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # such small models are slower on more cores
    with tempfile.TemporaryDirectory(prefix="atoll-attacks-") as scratch:
        data = f"file://{scratch}/data"
        write_stdlib(data)
        trained = setting(size, steps, data)
        for number in seed:
            programs = Programs(trained.run(number), trained.batch)
            clean, _, mistaken = train(trained, CLEAN, number, programs)
            for name in attack:
                loss, refused, false = (
                    (clean, 0, mistaken) if name == CLEAN else train(trained, name, number, programs)
                )
                yield Outcome(name, number, loss, clean, refused, false)
