"""A learner raises its limit of locked memory as far as its pod allows, and reports if that is not enough."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, os, resource, sys
from atoll_runtime.process import Terminal
from atoll_runtime.learner.lockedmemory import raise_limit

said, soft, hard, user = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
if os.geteuid() == 0:
    os.setuid(user)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
try:
    raise_limit({"ATOLL_LOCK_MEMORY": said})
except Terminal as error:
    print(error.reason, error)
print(resource.getrlimit(resource.RLIMIT_MEMLOCK))
"""
NOBODY = 65534
HARD = 64 << 10


def raised(said: str, user: int = NOBODY) -> str:
    """Runs a process that began with a low limit."""
    arguments = [str(each) for each in (HARD // 2, HARD, user)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, said, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE. In containers root often does not have it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return any(line.startswith("CapEff") and int(line.split()[1], 16) >> 24 & 1 for line in lines)


def test_soft_limit_becomes_the_hard_one_without_the_capability() -> None:
    told = raised("")
    assert f"limit {HARD} bytes, of {HARD // 2} bytes" in told
    assert str((HARD, HARD)) in told


def test_missing_capability_is_logged_with_the_limit() -> None:
    told = raised("true")
    assert told.startswith("LockedMemoryLimited ATOLL_LOCK_MEMORY is 'true'")
    assert f"{HARD} bytes" in told and "CAP_SYS_RESOURCE" in told
    assert str((HARD // 2, HARD)) in told


@pytest.mark.skipif(not may_raise_limits(), reason="needs CAP_SYS_RESOURCE")
def test_process_with_the_capability_has_no_limit() -> None:
    assert str((resource.RLIM_INFINITY, resource.RLIM_INFINITY)) in raised("true", os.geteuid())
