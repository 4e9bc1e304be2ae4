"""A pod's own identity: the CA of its run and its key pair."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc


class TlsError(Exception):
    """The files are missing or unreadable; the message names them."""


@dataclass(frozen=True)
class Tls:
    """PEM bytes of `ca.crt`, `tls.crt` and `tls.key`, and where they lie."""

    directory: Path
    ca: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, directory: str | Path) -> Tls:
        """Raises `TlsError` naming the file that is missing or empty."""
        folder = Path(directory)
        contents = []
        for name in ("ca.crt", "tls.crt", "tls.key"):
            try:
                content = (folder / name).read_bytes()
            except OSError as error:
                raise TlsError(f"{folder / name}: {error.strerror}") from error
            if not content.strip():
                raise TlsError(f"{folder / name} is empty")
            contents.append(content)
        return cls(folder, *contents)

    def client(self) -> grpc.ChannelCredentials:
        """Credentials of a learner."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def server(self) -> grpc.ServerCredentials:
        """Credentials of the syncer; a client without a certificate of the run's CA is refused."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=self.ca, require_client_auth=True
        )

    def server_context(self) -> ssl.SSLContext:
        """The same for HTTPS."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.ca.decode())
        context.load_cert_chain(self.directory / "tls.crt", self.directory / "tls.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
