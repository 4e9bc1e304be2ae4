"""What the control plane's parts listen on."""

from __future__ import annotations

import socket
from pathlib import Path

from atoll_local.controlplane import free_port


def test_no_free_port_is_one_that_the_kernel_gives_to_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert max(ports) < first or first <= 20000


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()
