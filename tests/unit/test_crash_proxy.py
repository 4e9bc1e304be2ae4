"""The proxy of the crash tests: an operator's n-th write is its last, whether it arrived or not."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from crash_proxy import Fault, Proxy, When, site

from atoll_local.pki import Authority
from atoll_operator.kube.client import APPLY, JSON, MERGE, STRATEGIC

PODS = "/api/v1/namespaces/n/pods"
RUNS = "/apis/atoll.dev/v1alpha1/namespaces/n/trainingruns"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/n/leases/one"


class Server(BaseHTTPRequestHandler):
    """Keeps what arrives; a GET with `watch` ends only after its first event was read."""

    protocol_version = "HTTP/1.1"
    arrived: list[str]
    read: threading.Event

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.arrived.append(f"{self.command} {self.path} {self.headers['Authorization']}")
        self.send_response(201)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        if "watch" in self.path:
            assert self.read.wait(30)
        self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


class Way:
    """A proxy with one gate in front of a server."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "pki")
        pair = authority.issue("server", "server", hosts=("127.0.0.1",))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self.arrived: list[str] = []
        self.read = threading.Event()
        handler = type("One", (Server,), {"arrived": self.arrived, "read": self.read})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        address = f"https://127.0.0.1:{self.server.server_port}"
        config = authority.kubeconfig(folder / "config", address, "one", pair)
        self.proxy = Proxy(pair, config, authority.cert.read_text())
        self.gate = self.proxy.gate(folder / "gated")
        self.address = yaml.safe_load((folder / "gated").read_text())["clusters"][0]["cluster"]["server"]
        self.context = ssl.create_default_context(cafile=str(authority.cert))

    def open(self, method: str, path: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        where = self.address.removeprefix("https://")
        connection = http.client.HTTPSConnection(where, timeout=30, context=self.context)
        connection.request(method, path, b"{}" if method != "GET" else None, {"Authorization": "Bearer me"})
        return connection, connection.getresponse()

    def send(self, method: str, path: str) -> str:
        """The answer's body; empty when the connection ended without one."""
        try:
            connection, answer = self.open(method, path)
        except OSError:
            return ""
        with answer:
            text = answer.read().decode()
        connection.close()
        return text

    def close(self) -> None:
        self.proxy.close()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(30)


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    one = Way(tmp_path)
    yield one
    one.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_second_write_is_the_last_that_is_sent_and_has_no_answer(way: Way, when: When) -> None:
    dead = threading.Event()
    fault = way.gate.fault = Fault(2, when, dead.set)
    assert way.send("PUT", LEASE) == way.send("POST", PODS) == way.send("GET", PODS) == "firstlast"
    assert not dead.is_set()
    assert way.send("DELETE", f"{PODS}/p?x=%2F") == ""
    assert dead.is_set()
    assert fault.write == f"delete pods: {PODS}/p"
    assert way.send("PATCH", PODS) == way.send("GET", PODS) == "", "the dead send nothing"
    expected = [f"PUT {LEASE}", f"POST {PODS}", f"GET {PODS}"]
    expected += [f"DELETE {PODS}/p?x=%2F"] if when == "after" else []
    assert way.arrived == [f"{each} Bearer me" for each in expected]


def test_a_fault_that_was_called_off_counts_no_more_and_one_that_struck_cannot_be(way: Way) -> None:
    dead = threading.Event()
    early = way.gate.fault = Fault(1, "before", dead.set)
    assert not early.call_off()
    assert way.send("POST", PODS) == "firstlast"
    assert (early.seen, dead.is_set()) == (0, False)
    late = way.gate.fault = Fault(1, "before", dead.set)
    way.send("POST", PODS)
    assert late.call_off()


def test_a_site_is_struck_whatever_the_number_of_the_write(way: Way) -> None:
    dead = threading.Event()
    fault = way.gate.fault = Fault(9, "before", dead.set, frozenset({"delete pods"}))
    assert way.send("POST", PODS) == "firstlast"
    assert way.send("DELETE", f"{PODS}/p") == ""
    assert (fault.seen, fault.write, dead.is_set()) == (2, f"delete pods: {PODS}/p", True)


@pytest.mark.parametrize(
    ("method", "path", "content_type", "body", "expected"),
    [
        ("POST", PODS, JSON, b"{}", "create pods"),
        ("PUT", f"{RUNS}/r", JSON, b"{}", "replace trainingruns"),
        ("PATCH", f"{PODS}/p", APPLY, b"{}", "apply pods"),
        ("PATCH", f"{PODS}/status", APPLY, b"{}", "apply pods"),
        ("PUT", f"{RUNS}/r/status", JSON, b"{}", "write_status trainingruns"),
        ("PATCH", f"{PODS}/p", MERGE, b"{}", "annotate pods"),
        ("PATCH", f"{PODS}/p", STRATEGIC, b"{}", "release pods"),
        ("DELETE", f"{RUNS}/r", JSON, b"{}", "delete trainingruns"),
        ("DELETE", f"{PODS}/p", JSON, b'{"gracePeriodSeconds": 60}', "delete pods with grace"),
        ("DELETE", f"{PODS}/p", JSON, b'{"gracePeriodSeconds": 0}', "delete pods at once"),
    ],
)
def test_a_write_is_known_by_the_operators_words(
    method: str, path: str, content_type: str, body: bytes, expected: str
) -> None:
    assert site(method, path, content_type, body) == expected


def test_events_of_a_watch_come_before_the_watch_ends(way: Way) -> None:
    connection, answer = way.open("GET", f"{PODS}?watch=true")
    with answer:
        assert answer.read1(5) == b"first"
        way.read.set()
        assert answer.read() == b"last"
    connection.close()
