"""Ctrl-C ends a command wherever it runs, and lets it clean up first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STATUS = 130
"""Exit status as in shells: 128 plus the signal's number."""
TIDYING = 10.0
"""Longest time from Ctrl-C to the end, in seconds. Another Ctrl-C in this time does not interrupt the clean-up."""
AGAIN = 0.005
"""Seconds after which an interrupt that could not be raised, or was swallowed, is raised again."""
LOADING = (ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__)
"""Frames of a compiled module's import. An exception raised there crashes the process (seen with jaxlib 0.10)."""


def watch() -> None:
    """Install the handler in this process. An ignored SIGINT, as in a shell's background job, stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _begin)
        signal.signal(signal.SIGALRM, _interrupt)
        sys.unraisablehook = _swallowed


def _begin(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = threading.Timer(TIDYING, os._exit, (STATUS,))
    last.daemon = True
    last.start()
    _interrupt(number, frame)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code in LOADING:
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _swallowed(error: UnraisableHookArgs) -> None:
    """Handle an exception that cannot be caught: from a destructor, or from JAX's garbage collector hook."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
    elif signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # what breaks in a command cut off is no news
        sys.__unraisablehook__(error)
