"""A certificate authority for each run, and the certificates of its pods."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll_operator.credentials import load_pair

VALID = datetime.timedelta(days=3 * 365)
"""A run lives for a year at most (`activeDeadlineSeconds`); nothing is renewed."""
SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs for one run."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the run's certificate authority is not an EC key")
        self._key = key

    @classmethod
    def new(cls, run: str) -> Authority:
        """A fresh authority, EC P-256."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"atoll {run}"[:64])
        usage = {use: use in ("key_cert_sign", "crl_sign", "digital_signature") for use in _USES}
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(_pair(certificate, key))

    def issue(self, common_name: str, uri: str, hosts: Sequence[str] = ()) -> Pair:
        """For client and server use; `uri` is the identity, `hosts` are DNS names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
        names += [x509.DNSName(host) for host in hosts]
        usage = {use: use == "digital_signature" for use in _USES}
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(_name(common_name[:64]), self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _pair(certificate, key)

    def client_context(self, pair: Pair) -> ssl.SSLContext:
        """Trusts this authority alone and shows `pair`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.pair.certificate.decode())
        load_pair(context, pair.certificate, pair.key)
        return context


def covers(certificate: bytes, hosts: Sequence[str]) -> bool:
    """Whether a certificate, PEM, can be read and has all these DNS names."""
    try:
        extensions = x509.load_pem_x509_certificate(certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    return set(hosts) <= set(names.get_values_for_type(x509.DNSName))


_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
