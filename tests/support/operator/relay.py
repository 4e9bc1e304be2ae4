"""A way to the API server that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import yaml


class Relay:
    """A way to the API server that can be cut without a word, as by a firewall: connections stay and carry nothing."""

    def __init__(self, server: str, kubeconfig: Path, folder: Path) -> None:
        host, port = server.removeprefix("https://").split(":")
        self._target = host, int(port)
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.kubeconfig = folder / "relayed"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.mend()
        _end(self._listener)
        self._threads[0].join(10)  # there are no more sockets and threads after that
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._carry, args=pair, name="relay")
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
