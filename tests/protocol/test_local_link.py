"""The links of nodes: limited, delayed and cut, between network namespaces of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_local.__main__ import main
from atoll_local.host import prepare_namespaces
from atoll_local.link import Link, parse_delay, parse_rate, shape
from atoll_local.namespaces import Namespace
from atoll_local.network import Network
from atoll_local.process import spawn, wait_for

PORT = 7001
SERVER = """
import socketserver, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            if data.endswith(b"?"):
                self.request.sendall(b"!")
socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(600),  # of which packages may need most, once
]


@pytest.fixture(scope="module")
def tools() -> None:
    """The Debian packages of the local cluster, which a fresh machine lacks."""
    prepare_namespaces(print)


@pytest.fixture
def node(tmp_path: Path, tools: None) -> Iterator[Namespace]:
    """A namespace on a bridge of its own, where a server answers."""
    network = Network(bridge="atolltest", subnet="10.251.0.0/24", pods="10.245.0.0/16")
    network.up()
    try:
        with Namespace("n", 0, network, tmp_path) as made:
            command = [sys.executable, "-c", SERVER, made.address, str(PORT)]
            server = spawn([*made.inside, *command], tmp_path / "server.log")
            try:
                wait_for("the server", lambda: answers(made, 1.0), 20)
                yield made
            finally:
                server.kill()
                server.wait(10)
    finally:
        network.down()


@pytest.mark.parametrize(
    "route",
    ["", "the route 10.244.1.0/24 dev other scope link", "the route 10.96.0.0/16 dev other scope link"],
)
def test_a_network_is_taken_by_a_route_of_another_cluster_that_ours_would_replace(
    route: str, tools: None
) -> None:
    added = route and f"&& ip route add {route.split()[2]} dev other"
    script = f'ip link add other type bridge && ip link set other up {added} && exec "$@"'
    program = "from atoll_local.network import Network; print(Network().taken('10.96.0.0/16'))"
    command = ("unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-c", program)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip() == route


def connect(machine: Namespace, timeout: float) -> socket.socket:
    return socket.create_connection((machine.address, PORT), timeout)


def ask(connection: socket.socket, size: int = 1) -> float:
    """Sends `size` bytes; returns the seconds until the answer to them."""
    begun = time.monotonic()
    connection.sendall(b"?".rjust(size, b"."))
    assert connection.recv(1) == b"!"
    return time.monotonic() - begun


def answers(machine: Namespace, timeout: float) -> bool:
    try:
        with connect(machine, timeout) as connection:
            ask(connection)
    except OSError:
        return False
    return True


def test_a_delayed_link_adds_its_delay_in_each_direction_loses_nothing_and_is_restored(
    node: Namespace,
) -> None:
    shape(node, Link(delay=0.06))
    wait_for("the link", lambda: answers(node, 2.0), 20)
    with connect(node, 10) as connection:
        assert min(ask(connection) for _ in range(5)) >= 0.12
        ask(connection, 2_000_000)
        shape(node, Link())
        assert min(ask(connection) for _ in range(5)) < 0.06
    assert node.relay.pid() is None


@pytest.mark.parametrize(("rate", "size"), [(8_000_000, 1_000_000), (720_000, 22_000)])
def test_a_limited_link_carries_its_rate_at_most_also_after_a_pause(
    node: Namespace, rate: int, size: int
) -> None:
    shape(node, Link(rate=rate))
    with connect(node, 30) as connection:
        ask(connection)
        assert ask(connection, size) >= 0.8 * size * 8 / rate


def test_a_cut_link_drops_everything_and_goes_on_once_it_is_restored(node: Namespace) -> None:
    with connect(node, 30) as connection:
        ask(connection)
        shape(node, Link(cut=True))
        assert not answers(node, 1.0)
        connection.sendall(b"?")
        shape(node, Link())
        assert connection.recv(1) == b"!", "an open connection survives"
        assert answers(node, 10.0)


@pytest.mark.parametrize(
    ("option", "texts", "words"),
    [
        ("--rate", ("40", "0mbit", "-1mbit", "1tbit", "mbit", "1000gbit"), "a rate from 8kbit to 100gbit"),
        ("--delay", ("60", "-1ms", "11s", "ms", "1h"), "a delay from 0ms to 10s"),
    ],
)
def test_a_rate_or_a_delay_that_is_none_is_refused_by_name(
    option: str, texts: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in texts:
        with pytest.raises(SystemExit, match="2"):
            main(["link", "n1", option, text])
        assert f"argument {option}: {text!r}: {words}" in capsys.readouterr().err
    assert (parse_rate("2.5gbit"), parse_delay("60ms")) == (2_500_000_000, 0.06)
