"""What every suite shares: how Hypothesis draws, what a library says in a thread, who runs which tests."""

import gc

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# The same examples on every machine, in whatever time they take: one that took long says that the machine was busy.
# `--hypothesis-profile=search` draws others at each run.
settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

# Orbax leaves its event loop at the first array that cannot be read. TensorStore tells the others' ends to the closed
# loop, from a thread of its own: at any time, and so in any test that runs by then.
LATE_READ = r"(?s)Exception ignored in. None.*call_soon_threadsafe.*RuntimeError. Event loop is closed"

SPREAD = ("tests/schedules/",)
"""Folders and files whose tests share no fixture worth keeping: the workers take them one by one, after the others."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", f"ignore:{LATE_READ}:pytest.PytestUnraisableExceptionWarning")


def pytest_collection_finish() -> None:
    """Collect garbage rarely: simulated worlds, full of cycles, take a twelfth of their time for it otherwise."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class Scheduling(LoadScopeScheduling):
    """Gives each worker whole files, because tests of a file share fixtures, and single tests of what is in SPREAD."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return Scheduling(config, log)
