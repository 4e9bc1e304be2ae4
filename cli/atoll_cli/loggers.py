"""What other packages log while a command runs. A command's own sentence says what went wrong, and once."""

from __future__ import annotations

import logging
import os

QUIET = ("asyncio", "datasets", "fsspec", "gcsfs", "google.auth", "huggingface_hub")
VERBOSITY = ("DATASETS_VERBOSITY", "HF_HUB_VERBOSITY")
"""These two packages print by themselves, unless told otherwise."""
NO_CREDENTIALS = "default credentials were not found"
"""Google's words, in whichever package's message."""


class _Kept(logging.Handler):
    """Prints nothing, and keeps in mind what concerns the user."""

    no_credentials = False

    def emit(self, record: logging.LogRecord) -> None:
        self.no_credentials = self.no_credentials or NO_CREDENTIALS in record.getMessage()


_kept = _Kept()


def quiet() -> None:
    """From now on these packages' loggers, and those below them, print nothing; what they said before is forgotten."""
    _kept.no_credentials = False
    for name in QUIET:
        logger = logging.getLogger(name)
        logger.addHandler(_kept)
        logger.propagate = False
    for name in VERBOSITY:
        os.environ.setdefault(name, "error")


def advice() -> str:
    """What a sentence about a bucket that cannot be used goes on with; empty where nothing was heard of it."""
    if not _kept.no_credentials:
        return ""
    return " (no credentials of Google's were found: gcloud auth application-default login)"
