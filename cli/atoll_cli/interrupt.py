"""Ctrl-C: it ends a command whatever code it falls into, and lets the command remove what it had begun."""

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
"""As shells have it: 128 and the signal's number."""
TIDYING = 10.0
"""Seconds from Ctrl-C to the end at the latest; another Ctrl-C in them does not break off the tidying."""
AGAIN = 0.005
"""Seconds after which an interrupt is raised again that could not be raised, or was swallowed."""
LOADING = (ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__)
"""Frames of a compiled module's start, in which an exception is a crash (measured with jaxlib 0.10)."""


def watch() -> None:
    """Of this process from now on; a SIGINT that is ignored, as in a shell's background job, stays so."""
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
    """An exception that nobody can catch: of a destructor, or of JAX's hook on the garbage collector."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
    elif signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # what breaks in a command cut off is no news
        sys.__unraisablehook__(error)
