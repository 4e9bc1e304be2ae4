"""`google.com/tpu` over the kubelet's device-plugin API v1beta1.

Offers `chips` devices. An allocation returns the environment that makes JAX run on CPU devices, so pods need no
change.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from atoll_local.nodes import TPU_RESOURCE

PLUGIN_DIR = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = PLUGIN_DIR / "kubelet.sock"
SOCKET = PLUGIN_DIR / "atoll-tpu.sock"
POLL_SECONDS = 0.5


def field(number: int, value: bytes | str) -> bytes:
    """Encodes a length-delimited protobuf field, the only kind that is used here."""
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _identity(message: bytes) -> bytes:
    return message


class TpuPlugin:
    def __init__(self, configuration: Path) -> None:
        content = json.loads(configuration.read_text())
        self.chips: int = content["chips"]
        self.environment: dict[str, str] = content["env"]
        self._stopped = threading.Event()

    def devices(self) -> bytes:
        """The `ListAndWatchResponse`."""
        return b"".join(
            field(1, field(1, f"chip-{chip}") + field(2, "Healthy")) for chip in range(self.chips)
        )

    def watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Streams the devices, which do not change."""
        yield self.devices()
        while not self._stopped.wait(POLL_SECONDS) and context.is_active():
            pass

    def allocate(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        """`AllocateResponse`: the environment for the container; the kubelet asks for one at a time."""
        envs = b"".join(field(1, field(1, key) + field(2, value)) for key, value in self.environment.items())
        return field(1, envs)

    def serve(self) -> None:
        """Serves until the kubelet ends or our socket is removed, as by a restarting kubelet."""
        SOCKET.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(max_workers=8))
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: b"", _identity, _identity
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.watch, _identity, _identity),
            "Allocate": grpc.unary_unary_rpc_method_handler(self.allocate, _identity, _identity),
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)]
        )
        server.add_insecure_port(f"unix://{SOCKET}")
        server.start()
        try:
            kubelet = _inode(KUBELET_SOCKET)
            register()
            while _inode(KUBELET_SOCKET) == kubelet and SOCKET.exists():
                time.sleep(POLL_SECONDS)
        finally:
            self._stopped.set()
            server.stop(0)


def register() -> None:
    """Registers the plugin with the kubelet. Raises `grpc.RpcError` if the kubelet does not answer within 10 s."""
    request = field(1, "v1beta1") + field(2, SOCKET.name) + field(3, TPU_RESOURCE)
    with grpc.insecure_channel(f"unix://{KUBELET_SOCKET}") as channel:
        call = channel.unary_unary("/v1beta1.Registration/Register", _identity, _identity)
        call(request, timeout=10, wait_for_ready=True)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def main() -> int:
    """Waits for the kubelet and serves until it ends. The node's init then restarts this process."""
    while _inode(KUBELET_SOCKET) is None:
        time.sleep(POLL_SECONDS)
    try:
        TpuPlugin(Path(sys.argv[1])).serve()
    except grpc.RpcError as error:
        print(f"registration failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
