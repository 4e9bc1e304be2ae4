"""Certificates and kubeconfigs of a local cluster."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


def valid_year(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.CertificateBuilder:
    """Return a certificate builder, not signed yet, that is valid for a year."""
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer,
        subject,
        key,
        x509.random_serial_number(),
        now - datetime.timedelta(minutes=5),
        now + datetime.timedelta(days=365),
    )


class Authority:
    """The cluster's certificate authority, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "atoll-local")])
        self._cert = (
            valid_year(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = folder / "ca.crt"
        self.cert.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, common_name: str, organization: str = "", hosts: Sequence[str] = ()) -> Pair:
        """A certificate for client and server use; `hosts` are DNS names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = valid_year(x509.Name(subject), self._cert.subject, key.public_key())
        builder = builder.add_extension(usage, critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        pair.cert.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def kubeconfig(self, path: Path, server: str, context: str, pair: Pair) -> Path:
        """Writes a self-contained kubeconfig with one context."""

        def data(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [
                {
                    "name": context,
                    "cluster": {"server": server, "certificate-authority-data": data(self.cert)},
                }
            ],
            "users": [
                {
                    "name": context,
                    "user": {"client-certificate-data": data(pair.cert), "client-key-data": data(pair.key)},
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
