"""A pod's own identity: the CA of its run and its key pair, as they are in the files now.

The operator renews a certificate in its Secret and the kubelet replaces the files. New connections use what is
then in the files. Open connections are not touched, and no process is restarted.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

NAMES = ("ca.crt", "tls.crt", "tls.key")
Stamp = tuple[tuple[int, int, int], ...]
"""Inode, time of change and size of each file."""


class TlsError(Exception):
    """The files are missing, unreadable, or do not match; the message names them."""


@dataclass(frozen=True, eq=False)
class Identity:
    """The certificate that a server and a client show, and the CA that they trust."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class Tls:
    """The files of one directory. Safe to use from any thread."""

    def __init__(self, directory: str | Path) -> None:
        """Raises `TlsError` naming the file that is missing."""
        self._directory = Path(directory)
        self._stamp, self._identity = _load(self._directory)

    def identity(self) -> Identity:
        """The newest identity that could be read. While files are being replaced, this is the previous one."""
        try:
            if _stamp(self._directory) != self._stamp:
                self._stamp, self._identity = _load(self._directory)
                log.info("a new certificate was read from %s", self._directory)
        except TlsError as error:
            log.warning("keeps the certificate that it has: %s", error)
        return self._identity

    def server_context(self) -> ssl.SSLContext:
        """A context that a server can keep: each handshake uses the newest identity. A client without a certificate of
        the run's CA is refused."""
        first = self.identity().server

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = self.identity().server

        first.sni_callback = choose
        return first


def _stamp(directory: Path) -> Stamp:
    found = []
    for name in NAMES:
        try:
            state = (directory / name).stat()
        except OSError as error:
            raise TlsError(f"{directory / name}: {error.strerror}") from error
        found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)


def _load(directory: Path) -> tuple[Stamp, Identity]:
    """Reads all three files of one generation. The kubelet switches one link that all three names go through."""
    stamp = _stamp(directory)
    server, client = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(directory / "ca.crt")
            context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        except (OSError, ValueError) as error:
            raise TlsError(f"the certificates in {directory} cannot be used: {error}") from error
    # A client that resumes is not checked again. It could go on after its certificate, or its authority, has ended.
    server.num_tickets = 0
    if _stamp(directory) != stamp:
        raise TlsError(f"the files in {directory} change at this moment")
    return stamp, Identity(server, client)
