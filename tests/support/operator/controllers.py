"""The real controllers of Kubernetes, those that a test needs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll_local.programs import find

END_SECONDS = 20


@contextlib.contextmanager
def controllers(plane: Any, folder: Path, *names: str) -> Iterator[None]:
    """Runs these alone, with Kubernetes' own time-outs; `folder` gets their log."""
    with (folder / f"{names[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                find("kube-controller-manager"), f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false",
                f"--controllers={','.join(names)}", "--secure-port=0",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait(END_SECONDS)
