"""Errors that end a syncer. `Terminal`: a restart does not help. `JournalError`: the volume failed."""

from __future__ import annotations


class Terminal(Exception):
    """Ends the process with `EXIT_TERMINAL`; `reason` is CamelCase, the message is for the user."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class JournalError(Exception):
    """The journal cannot be read or written; the message names the file."""
