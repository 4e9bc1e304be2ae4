"""Entry point of `atoll`. Everything else is imported later, when Ctrl-C already prints one line."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from atoll_cli import interrupt, loggers
from atoll_cli.errors import CommandError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""errno values of an output that accepts nothing."""


def main(arguments: Sequence[str] | None = None, commands: str = "atoll_cli.options") -> int:
    """Run one command. Exit status: 0, 1 (failed), 2 (wrong usage or host) or 130 (interrupted).

    Args:
        arguments: None: those of this process, which an interrupt ends without waiting for its threads.
        commands: module whose `execute` runs them.
    """
    try:
        if arguments is None:
            interrupt.watch()
        return _status(arguments, commands)
    except KeyboardInterrupt:
        print("atoll: interrupted", file=sys.stderr, flush=True)
        if arguments is None:
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(interrupt.STATUS)
        return interrupt.STATUS


def _status(arguments: Sequence[str] | None, commands: str) -> int:
    if sys.stderr is None:  # closed by the caller; `print` would take the standard output in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    try:
        if sys.stdout is None:
            raise CommandError("standard output is closed")
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, io.TextIOWrapper):  # a dash or a user's own text is no reason to end
                output.reconfigure(errors="backslashreplace")
        loggers.quiet()
        status: int = import_module(commands).execute(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
        return status
    except CommandError as error:
        print(f"atoll: {error}{loggers.advice()}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # `| head` has seen enough
        _discard_output()
        return 0
    except OSError as error:
        what = error.filename or ("output" if error.errno in FULL else type(error).__name__)
        print(f"atoll: {what}: {error.strerror or error}", file=sys.stderr)
        _discard_output()
        return 1


def _discard_output() -> None:
    """Drop buffered output, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
