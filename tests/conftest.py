"""Settings of every suite: Hypothesis profiles, an ignored warning, garbage collection, and distribution to workers."""

import gc

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# The same examples on every machine and without a deadline, because a slow example only shows that the machine was
# busy. `--hypothesis-profile=search` draws new examples at each run.
settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

# Orbax closes its event loop at the first array that cannot be read. TensorStore later reports the other arrays to the
# closed loop from its own thread, so the warning may appear in any test.
LATE_READ = r"(?s)Exception ignored in. None.*call_soon_threadsafe.*RuntimeError. Event loop is closed"

SPREAD = ("tests/schedules/",)
"""Folders and files of tests without costly shared fixtures. The workers take these one by one, after the others."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", f"ignore:{LATE_READ}:pytest.PytestUnraisableExceptionWarning")


def pytest_collection_finish() -> None:
    """Collect garbage rarely. Otherwise it takes a twelfth of the time of simulated worlds, which have many cycles."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class Scheduling(LoadScopeScheduling):
    """Gives workers whole files, because tests of a file share fixtures, but single tests from what is in SPREAD."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return Scheduling(config, log)
