"""Reserves ports for a test, also before and between the times when a server listens on them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Binds ports without listening. A server may listen on them as often as it is started. The kernel gives them to
    no other test and no outgoing connection. A client that connects too early is refused."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set it too; both must
            holder.bind(("", 0))
            ports.append(holder.getsockname()[1])
        yield ports
