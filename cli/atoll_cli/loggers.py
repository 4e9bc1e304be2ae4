"""Silences the logs of other packages while a command runs. The command reports an error once, in its own words."""

from __future__ import annotations

import logging

QUIET = ("asyncio", "fsspec", "gcsfs", "google.auth", "urllib3", "atoll_runtime.checkpoint.cloudstorage")
NO_CREDENTIALS = "default credentials were not found"
"""Google's wording, which a message of any of the packages may contain."""


class _Kept(logging.Handler):
    """Prints nothing, but remembers whether credentials were missing."""

    no_credentials = False

    def emit(self, record: logging.LogRecord) -> None:
        self.no_credentials = self.no_credentials or NO_CREDENTIALS in record.getMessage()


_kept = _Kept()


def quiet() -> None:
    """Silence these packages' loggers and those below them, and forget earlier messages."""
    _kept.no_credentials = False
    for name in QUIET:
        logger = logging.getLogger(name)
        logger.addHandler(_kept)
        logger.propagate = False


def advice() -> str:
    """The cause to add to a message about an unusable bucket; empty if no package logged one."""
    if not _kept.no_credentials:
        return ""
    return " (no credentials of Google's were found: gcloud auth application-default login)"
