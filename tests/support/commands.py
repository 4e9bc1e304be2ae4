"""Writes programs, and runs them to their end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def ended(
    *command: str | Path,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """The exit status, output and errors of a program. `environment` is added to that of this process."""
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def executable(path: Path, script: str) -> Path:
    """Writes a program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
