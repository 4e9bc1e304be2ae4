"""Programs are kept between runs; text that a small model can learn."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
from compile_cache import keep_programs

from atoll_local.nodes import TPU_ENVIRONMENT
from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec, OuterSpec, QuorumSpec
from atoll_runtime.data import write_text
from atoll_runtime.simulate.training.setting import Setting

WORDS = ("island", "merges", "what", "the", "learners", "sent", "and", "trains", "on", "its", "own", "clock")

keep_programs()
os.environ.setdefault("XLA_FLAGS", TPU_ENVIRONMENT["XLA_FLAGS"])


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> str:
    """Some 60 kB of text that a model can learn, in both splits."""
    uri, rng = f"file://{tmp_path_factory.mktemp('text')}/data", np.random.default_rng(0)
    write_text(uri, ((f"{number}.txt", " ".join(rng.choice(WORDS, 100)).encode()) for number in range(100)))
    return uri


@pytest.fixture(scope="session")
def setting(data) -> Setting:
    """Of training in simulated time: one learner, a model of 6 thousand parameters, 60 steps."""
    return Setting(
        model=ModelSpec(dimensions=Dimensions(layers=1, width=16, heads=2, kv_heads=1, hidden=32)),
        inner=InnerSpec(learning_rate=1e-2, warmup_steps=5),
        outer=OuterSpec(fragments=4, interval=4),
        quorum=QuorumSpec(),
        data=data,
        length=16,
        sequences=16,
        steps=60,
    )


@pytest.fixture(name="processes_of", scope="session")
def processes_of_fixture():
    """Gives the command lines of the processes whose environment names a path below a folder."""

    def processes_of(folder: Path) -> list[bytes]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(folder).encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes())
        return found

    return processes_of
