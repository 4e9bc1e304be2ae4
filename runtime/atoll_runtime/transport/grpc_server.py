"""The syncer's gRPC server for sessions: mTLS, generic handlers, bytes in and out; the endpoint decides."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import NoReturn

import grpc
import grpc.aio

from atoll_runtime.transport.chunks import MESSAGE_LIMIT
from atoll_runtime.transport.messages import DirectoryRequest
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Endpoint, Peer
from atoll_runtime.transport.wire import Up, WireError, decode, encode

log = logging.getLogger(__name__)

SERVICE = "atoll.v1.Syncer"
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)


class GrpcServer:
    """Serves one endpoint on one port. Raises `OSError` when the port is taken."""

    def __init__(self, endpoint: Endpoint, tls: Tls, port: int) -> None:
        self._endpoint = endpoint
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE,
                    {
                        "Session": grpc.stream_stream_rpc_method_handler(self._session),
                        "Directory": grpc.unary_unary_rpc_method_handler(self._directory),
                    },
                ),
            )
        )
        self._credentials = tls.server()  # grpc.aio keeps no reference to what it asks at each handshake
        try:
            self.port = self._server.add_secure_port(f"[::]:{port}", self._credentials)
        except RuntimeError as error:
            raise OSError(f"port {port} cannot be listened on: {error}") from error

    async def start(self) -> None:
        await self._server.start()
        log.info("serving on port %d", self.port)

    async def stop(self, grace: float) -> None:
        """Ends all calls after `grace` seconds at most."""
        await self._server.stop(grace)

    async def _session(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async def incoming() -> AsyncIterator[Up]:
            async for data in requests:
                message = decode(data)
                if not isinstance(message, Up):
                    raise WireError(f"{type(message).__name__} does not belong on a session")
                yield message

        try:
            async for message in self._endpoint.session(peer_of(context), incoming()):
                yield encode(message)
        except WireError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _directory(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            request = decode(data)
        except WireError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not isinstance(request, DirectoryRequest):
            await abort(
                context, grpc.StatusCode.INVALID_ARGUMENT, f"{type(request).__name__} is no DirectoryRequest"
            )
        found = self._endpoint.directory(peer_of(context), request)
        if isinstance(found, str):
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, found)
        return encode(found)


async def abort(context: grpc.aio.ServicerContext, code: grpc.StatusCode, detail: str) -> NoReturn:
    """Ends the call with a status."""
    await context.abort(code, detail)
    raise AssertionError("abort raises")


def peer_of(context: grpc.aio.ServicerContext) -> Peer:
    """The peer by its certificate's names; gRPC gives them as bytes, URIs among them."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    identities = tuple(name.decode() for name in names)
    return Peer(identities or ("",), context.peer())
