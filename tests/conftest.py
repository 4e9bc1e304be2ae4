"""Shared by all suites: Hypothesis profiles, and which worker runs which tests."""

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

SPREAD = ("tests/schedules/",)
"""Folders and files whose tests share no fixture worth keeping: the workers take them one by one, after the others."""


class Scheduling(LoadScopeScheduling):
    """Gives each worker whole files, because tests of a file share fixtures, and single tests of what is in SPREAD."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return Scheduling(config, log)
