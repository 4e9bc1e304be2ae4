"""Ports that are a test's own, before anybody listens on them and while nobody does."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Bound and not listened on: a server may take them, as often as it is started, and the kernel gives them to nobody
    else, be it a test beside this one or the near end of a connection. Who connects too early is refused."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: both must
            holder.bind(("", 0))
            ports.append(holder.getsockname()[1])
        yield ports
