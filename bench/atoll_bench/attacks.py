"""One of eight learners attacks: the held-out loss beside that of the clean run, and what was refused.

The syncer, the learners' loop and their clients are those of the pods, in simulated time (see `atoll bench parity`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atoll_bench.attackers import ATTACKS
from atoll_bench.parity.trials import Trial
from atoll_runtime.contract import GraceSpec, QuorumSpec
from atoll_runtime.data import write_stdlib
from atoll_runtime.learner.errors import LossNotFinite
from atoll_runtime.simulate.shard import Stalled
from atoll_runtime.simulate.training.programs import Programs
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.simulate.training.world import World

LEARNERS = 8
QUORUM = 4
"""K, with the default grace. With K = M no round is merged without the one that attacks."""
RATE = 16e-3
"""What the proof's tuning chose for this size and number of learners."""
CLEAN = "none"


@dataclass(frozen=True)
class Outcome:
    """One line of `atoll bench attacks --json`."""

    attack: str
    seed: int
    loss: float | None
    """Held-out, nats per byte; None where the run came to no end, or to no finite loss."""
    clean_loss: float | None
    """Of the same seed without an attack."""
    refused: int
    """Contributions of the attacker that were refused."""
    false_refusals: int
    """Of the other seven."""


def setting(size: str, steps: int, data: str) -> Setting:
    """Eight equal learners with a quorum of four."""
    trial = Trial("attack", size, "decoupled", LEARNERS, "bf16", 0, steps, RATE)
    return replace(trial.setting(data), quorum=QuorumSpec(min=QUORUM, grace=GraceSpec()))


def train(
    trained: Setting, attack: str, seed: int, programs: Programs | None = None
) -> tuple[float | None, int, int]:
    """Loss, and how many contributions of the attacker and of the others were refused. `programs`: see `World`."""
    world = World(trained, seed, ATTACKS[attack], programs)
    try:
        loss: float | None = world.train().loss
    except (LossNotFinite, Stalled):
        loss = None
    counts = {name: len(rounds) for name, rounds in world.shard.tape.refused.items()}
    wrong = 0 if attack == CLEAN else counts.pop(world.islands[-1].name, 0)
    return loss, wrong, sum(counts.values())


def measure(attack: Sequence[str], seed: Sequence[int], size: str, steps: int) -> Iterator[Outcome]:
    """As they come; the clean run of each seed is trained first, whether or not it is asked for."""
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
