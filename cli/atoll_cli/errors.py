"""Errors that end a command, with their exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """The command failed; the message is for the user (exit status 1)."""

    status = 1


class UsageError(CommandError):
    """Wrong usage, or this machine lacks something; the message is one sentence (exit status 2)."""

    status = 2


OTHERS: dict[str, type[CommandError]] = {
    "atoll_local.errors.ClusterError": CommandError,
    "atoll_local.errors.HostError": UsageError,
    "atoll_runtime.data.catalogue.DataError": UsageError,
    "atoll_runtime.export.layouts.ExportError": UsageError,
    "atoll_runtime.payloads.StoreError": CommandError,
    "atoll_runtime.protocol.tape.TapeError": UsageError,
    "atoll_runtime.simulate.shard.Stalled": CommandError,
    "atoll_runtime.syncer.records.JournalError": CommandError,
    "atoll_runtime.process.Terminal": CommandError,
}
"""Errors of our other packages. Given by name, because a command imports these packages only when it runs."""


@contextmanager
def command_errors() -> Iterator[None]:
    """Turns errors of our other packages into those of a command, with the same message."""
    try:
        yield
    except Exception as error:
        for kind in type(error).__mro__:
            if found := OTHERS.get(f"{kind.__module__}.{kind.__qualname__}"):
                raise found(str(error)) from error
        raise


def lacking(error: ImportError, command: str, extras: str) -> UsageError:
    """Return the error for packages that are not installed. Raises `error` itself if a module of Atoll is missing.

    Args:
        extras: those of pyproject.toml that install the packages. The message names a checkout of Atoll, because no
            distribution of Atoll is published.
    """
    if str(error.name).startswith("atoll_"):
        raise error
    return UsageError(f"{command} needs packages, in a checkout of Atoll: pip install '.[{extras}]': {error}")
