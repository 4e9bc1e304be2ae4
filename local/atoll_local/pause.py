"""A tiny program that only sleeps."""

from __future__ import annotations

import platform
import struct

from atoll_local.errors import HostError

# ELF's number of the processor, and code for (;;) pause(). arm64 has no pause, so it calls ppoll(0, 0, 0, 0).
_PAUSE_CODE = {
    "x86_64": (62, bytes.fromhex("b8 22 00 00 00  0f 05  eb f7")),
    "aarch64": (183, bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17")),
}
_LOAD_ADDRESS = 0x400000
_HEADERS = 64 + 56


def pause_program(machine: str = platform.machine()) -> bytes:
    """A static ELF program that sleeps until it is killed, for a pod's sandbox. Raises `HostError` if there is no code
    for this processor."""
    if machine not in _PAUSE_CODE:
        raise HostError(f"no pause program for the processor {machine!r}: known are {', '.join(_PAUSE_CODE)}")
    number, code = _PAUSE_CODE[machine]
    size = _HEADERS + len(code)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, number, 1, _LOAD_ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 0x1000)
    return ident + header + segment + code
