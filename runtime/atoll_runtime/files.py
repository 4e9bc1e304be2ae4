"""Files that are whole or not there."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"
"""End of the name of a file that is not whole yet."""


def replace(path: Path, data: bytes) -> None:
    """Written beside, then renamed: who is killed or out of space leaves the file that stood before."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
