"""What every suite shares: how Hypothesis draws, and what a library says in a thread after its call has failed."""

import pytest
from hypothesis import HealthCheck, settings

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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", f"ignore:{LATE_READ}:pytest.PytestUnraisableExceptionWarning")
