"""Errors that end a command, with their exit status."""

from __future__ import annotations


class CommandError(Exception):
    """The command failed; the message is for the user (exit status 1)."""

    status = 1


class UsageError(CommandError):
    """Wrong usage, or this machine lacks something; the message is one sentence (exit status 2)."""

    status = 2


def lacking(error: ImportError, needs: str, extras: str) -> UsageError:
    """The error for packages that are not installed. A missing module of Atoll itself is raised as it is.

    Args:
        extras: of pyproject.toml, that bring them. No distribution of ours is published: a checkout is named.
    """
    if str(error.name).startswith("atoll_"):
        raise error
    return UsageError(f"{needs}, in a checkout of Atoll: pip install '.[{extras}]': {error}")
