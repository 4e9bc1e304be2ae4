"""Programs are kept between runs; text that a small model can learn."""

import os

import numpy as np
import pytest
from compile_cache import keep_programs

from atoll_local.chips import TPU_ENVIRONMENT
from atoll_runtime.data import write_text

WORDS = ("island", "merges", "what", "the", "learners", "sent", "and", "trains", "on", "its", "own", "clock")

keep_programs()
os.environ.setdefault("XLA_FLAGS", TPU_ENVIRONMENT["XLA_FLAGS"])


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> str:
    """Some 60 kB of text that a model can learn, in both splits."""
    folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    documents = []
    for number in range(100):
        path = folder / f"{number}.txt"
        path.write_text(" ".join(rng.choice(WORDS, 100)))
        documents.append((path.name, path))
    uri = f"file://{folder}/data"
    write_text(uri, documents)
    return uri
