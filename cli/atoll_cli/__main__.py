"""Entry point of `atoll`. It imports everything else later, inside the code that turns Ctrl-C into one line."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from atoll_cli import loggers
from atoll_cli.errors import CommandError, UsageError, command_errors

INTERRUPTED = 130
"""Exit status after a signal that ends a command: that of SIGINT in shells."""


def main(arguments: Sequence[str] | None = None, commands: str = "atoll_cli.options") -> int:
    """Run one command. Exit status: 0, 1 (failed), 2 (wrong usage or host) or 130 (interrupted).

    Args:
        arguments: None for those of this process. An interrupt then ends it without waiting for its threads, and
            SIGTERM and SIGHUP, if the caller does not ignore them, interrupt it too.
        commands: name of the module with the function `execute` that runs them.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for number in (signal.SIGTERM, signal.SIGHUP) if arguments is None else ():
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    try:
        return _status(arguments, commands)
    except KeyboardInterrupt:
        _tell("interrupted")
        with suppress(OSError):
            sys.stdout.flush()
        if arguments is None:
            os._exit(INTERRUPTED)
        return INTERRUPTED


def _status(arguments: Sequence[str] | None, commands: str) -> int:
    try:
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, io.TextIOWrapper):  # escape what the terminal cannot encode
                output.reconfigure(errors="backslashreplace")
        loggers.quiet()
        with command_errors():
            status: int = import_module(commands).execute(
                sys.argv[1:] if arguments is None else list(arguments)
            )
        sys.stdout.flush()
        return status
    except CommandError as error:
        _tell(f"{error}{loggers.advice()}")
        return error.status
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        _discard(sys.stdout.fileno())
        return 0
    except OSError as error:
        # No output is missing: what has no name and is not there is the folder in which the command was called.
        where = error.filename or ("working folder" if isinstance(error, FileNotFoundError) else "output")
        _tell(f"{where}: {error.strerror or error}")
        if where != "output":
            return UsageError.status
        _discard(sys.stdout.fileno())
        return 1


def _tell(text: str) -> None:
    try:
        print(f"atoll: {text}", file=sys.stderr, flush=True)
    except OSError:  # it is full, its reader is gone, or the terminal has hung up
        _discard(sys.stderr.fileno())


def _discard(descriptor: int) -> None:
    """Drop what is buffered, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


if __name__ == "__main__":
    sys.exit(main())
