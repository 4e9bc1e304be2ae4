"""What ends a command, and with which exit status."""

from __future__ import annotations


class CommandError(Exception):
    """Something that was asked for did not happen; the message is for the user (exit status 1)."""

    status = 1


class UsageError(CommandError):
    """The question was wrong, or this machine cannot answer it; one clear sentence (exit status 2)."""

    status = 2


def lacking(error: ImportError, needs: str, extras: str) -> UsageError:
    """What to say of packages that are not installed; a module of our own, which none would bring, is raised.

    Args:
        extras: of pyproject.toml, that bring them. No distribution of ours is published: a checkout is named.
    """
    if str(error.name).startswith("atoll_"):
        raise error
    return UsageError(f"{needs}, in a checkout of Atoll: pip install '.[{extras}]': {error}")
