"""What ends a command, and with which exit status."""

from __future__ import annotations


class CommandError(Exception):
    """Something that was asked for did not happen; the message is for the user (exit status 1)."""

    status = 1


class UsageError(CommandError):
    """The question was wrong, or this machine cannot answer it; one clear sentence (exit status 2)."""

    status = 2


def lacking(error: ModuleNotFoundError, needs: str) -> UsageError:
    """What to say of a package that is not installed; a module of our own, which none would bring, is raised."""
    if str(error.name).startswith("atoll_"):
        raise error
    return UsageError(f"{needs}: {error}")
