"""The two ends of a measured link, each a process. They use the product's transfers, and plain TLS sockets.

`python -m atoll_bench.linkends serve ARGUMENTS` serves both until its input ends, and then prints what its event loop
did meanwhile. `… measure ARGUMENTS` prints rates. ARGUMENTS are those of the function, as a JSON object. Each prints
JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np

from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Part
from atoll_runtime.transport.chunks import CHUNK, Assembly
from atoll_runtime.transport.messages import FetchHead, FetchRequest, PushReply
from atoll_runtime.transport.stream import tune
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import TransferClient
from atoll_runtime.transport.transfer_server import TransferServer
from atoll_runtime.transport.transport import Peer, Receive

UNIT = "unit"
NAME = "localhost"
"""In every certificate."""
LAG_SECONDS = 0.05
"""Seconds between two planned wake-ups of the event loop."""


class Memory:
    """An endpoint that takes every body and sends the same one to everybody, so that only the transfer is measured."""

    def __init__(self, size: int) -> None:
        self.body = memoryview(np.random.default_rng(0).bytes(size))
        self.moved = 0
        """Bytes, both ways."""
        self._assemblies: dict[object, Assembly] = {}

    async def push(self, peer: Peer, header: Header, receive: Receive) -> PushReply:
        """See `Endpoint`. What came of a body before a break is kept."""
        await receive(self._assemblies.setdefault(header.key, Assembly(header.size)))
        del self._assemblies[header.key]
        self.moved += header.size
        return PushReply(True)

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        self.moved += len(self.body)
        return FetchHead(0, 1, len(self.body), request.codec), self.body


def tuned(sock: socket.socket) -> socket.socket:
    """Returns the socket with the options that the product sets."""
    tune(sock)
    return sock


def send(sock: ssl.SSLSocket, data: memoryview) -> None:
    for start in range(0, len(data), CHUNK):
        sock.sendall(data[start : start + CHUNK])


def receive(sock: ssl.SSLSocket, data: memoryview) -> None:
    at = 0
    while at < len(data):
        size = sock.recv_into(data[at : at + CHUNK])
        if not size:
            raise ConnectionError("the other end has closed the connection")
        at += size


def header(size: int, step: int = 0) -> Header:
    """The header of a part. Each step gives another part."""
    return Header(Part(UNIT, 1, 0, 1, RoundId(step, 0, 0), 0, 1, 8, 0, 0, 0, 1, 1, 8), "bf16", size)


def fresh(size: int) -> memoryview:
    """New memory for each body. The product receives into new memory too, because it keeps what has come."""
    return memoryview(np.empty(size, np.uint8).data)


async def serve(folder: str, size: int, streams: int) -> dict[str, float]:
    """Serves until the input ends. Returns what the event loop did."""
    tls, memory = Tls(folder), Memory(size)
    server = TransferServer(memory, tls, 0)  # type: ignore[arg-type]
    listener = socket.create_server(("", 0))
    body = memory.body[: size // streams]

    def plain(sock: socket.socket) -> None:
        with tls.identity().server.wrap_socket(tuned(sock), server_side=True) as secure:
            while direction := secure.recv(1):
                if direction == b"u":
                    receive(secure, fresh(len(body)))
                    secure.sendall(b"k")
                else:
                    send(secure, body)

    def accept() -> None:
        while True:
            threading.Thread(target=plain, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(json.dumps({"port": server.port, "plain": listener.getsockname()[1]}), flush=True)
    lags, began = list[float](), time.thread_time()
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    while not ended.done():
        before = time.monotonic()
        await asyncio.sleep(LAG_SECONDS)
        lags.append(time.monotonic() - before - LAG_SECONDS)
    used = (time.thread_time() - began) / max(memory.moved / 2**30, 1e-9)
    await server.stop()
    return {"loop_lag_p99": float(np.percentile(lags, 99)), "loop_seconds_per_gib": used}


async def measure(
    folder: str,
    size: int,
    streams: int,
    host: str,
    port: int,
    plain: int = 0,
    cold: int = 0,
    repeat: int = 1,
    beside: int = 1,
    bodies: int = 1,
) -> dict[str, list[float]]:
    """Returns bytes a second of plain sockets and the product, measured in turns.

    Args:
        plain: port of plain sockets; 0: only the product is measured.
        cold: uncounted turns in which connections are made and TCP learns what they carry.
        beside: concurrent transfers of the product, each of `bodies` bodies, one after the other.
    """
    rates, tls = dict[str, list[float]](), Tls(folder)
    client = TransferClient(host, port, tls)
    client.streams = streams
    body = memoryview(np.random.default_rng(0).bytes(size))
    part, parts = body[: size // streams], count()
    socks = [
        tls.identity().client.wrap_socket(
            tuned(socket.create_connection((host, plain))), server_hostname=NAME
        )
        for _ in range(streams if plain else 0)
    ]

    def up(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"u")
        send(sock, part)
        sock.recv(1)

    def down(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"d")
        receive(sock, fresh(len(part)))

    async def push() -> None:
        for _ in range(bodies):
            assert (await client.push(header(size, next(parts)), body, lambda: True)).accepted

    async def fetch(fragment: int) -> None:
        # The server ends a fetch when the host begins another of the same fragment.
        request = FetchRequest(UNIT, 1, fragment, 1, 0, size // 2, "bf16")
        for _ in range(bodies):
            await client.fetch(request, lambda: None)

    with ThreadPoolExecutor(streams) as threads:

        async def by_sockets(work: Callable[[ssl.SSLSocket], None]) -> None:
            list(threads.map(work, socks))

        transfers: dict[str, Callable[[], Awaitable[object]]] = {
            "plain_push": lambda: by_sockets(up),
            "push": lambda: asyncio.gather(*(push() for _ in range(beside))),
            "plain_fetch": lambda: by_sockets(down),
            "fetch": lambda: asyncio.gather(*map(fetch, range(beside))),
        }
        for _ in range(cold + repeat):
            for name, transfer in transfers.items():
                began = time.perf_counter()
                await transfer()
                moved = size if name.startswith("plain") else size * beside * bodies
                rates.setdefault(name, []).append(moved / (time.perf_counter() - began))
    await client.close()
    return {name: found[cold:] for name, found in rates.items()}


if __name__ == "__main__":
    work: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {"serve": serve, "measure": measure}
    print(json.dumps(asyncio.run(work[sys.argv[1]](**json.loads(sys.argv[2])))), flush=True)
    os._exit(0)  # threads of plain sockets may still wait
