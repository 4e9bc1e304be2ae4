"""The certificate authorities of a run, and the certificates of its pods."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LEAF_LIFE = datetime.timedelta(days=90)
"""Lifetime of a pod's certificate. It is renewed with 30 days left, so the operator may be down for that long."""
AUTHORITY_LIFE = datetime.timedelta(days=3 * 365)
DELIVERY = datetime.timedelta(days=1)
"""A new authority signs nothing before this time, so that every pod trusts it by then. The kubelet updates a changed
Secret within two minutes, but a node may be cut off for hours."""
SKEW = datetime.timedelta(minutes=5)
"""A certificate is valid from this long before its creation, for pods whose clock is behind."""


@dataclass(frozen=True, slots=True)
class Life:
    """When a certificate is valid."""

    begins: datetime.datetime
    ends: datetime.datetime

    def due(self, now: datetime.datetime) -> bool:
        """Whether a third of the lifetime or less is left."""
        return self.ends - now <= (self.ends - self.begins) / 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority of one run. Raises ValueError if certificate or key cannot be read."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the run's certificate authority is not an EC key")
        self._key = key
        self.life = _life(self._certificate)

    @classmethod
    def new(cls, run: str, now: datetime.datetime) -> Self:
        """A new authority with an EC P-256 key."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Two authorities with the same subject would confuse verifiers.
        name = _name(f"atoll {now:%Y-%m-%d} {run}")
        return cls(_pair(name, key, name, key, Life(now, now + AUTHORITY_LIFE), ca=True))

    def issue(
        self,
        common_name: str,
        uri: str,
        hosts: Sequence[str],
        now: datetime.datetime,
        life: datetime.timedelta = LEAF_LIFE,
    ) -> Pair:
        """A certificate for clients and servers. `uri` is the identity, `hosts` are DNS names.

        It expires no later than the authority.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.UniformResourceIdentifier(uri), *map(x509.DNSName, hosts)]
        return _pair(
            _name(common_name),
            key,
            self._certificate.subject,
            self._key,
            Life(now, min(now + life, self.life.ends)),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            x509.SubjectAlternativeName(names),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )

    def signed(self, certificate: x509.Certificate) -> bool:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(self._certificate)
            return True
        return False


class Authorities:
    """The authorities of one run at one time: all that its pods trust, and the one that signs."""

    def __init__(self, trusted: Sequence[Authority], signer: Authority) -> None:
        self.trusted = tuple(trusted)
        self.signer = signer

    @classmethod
    def of(cls, run: str, stored: Sequence[Authority], now: datetime.datetime) -> Self:
        """The authorities to use now, from the stored ones (oldest first), with a new one if it is due.

        Every one that may have signed a valid certificate is trusted.
        """
        trusted = [each for each in stored if each.life.ends > now]
        delivered = [each for each in trusted if each.life.begins + DELIVERY <= now]
        if not trusted or trusted[-1].life.due(now):
            trusted.append(Authority.new(run, now))
        return cls(trusted, delivered[-1] if delivered else trusted[0])

    @classmethod
    def load(cls, certificates: bytes, keys: bytes) -> list[Authority]:
        """From PEM: one key per certificate, in the same order. Raises ValueError if that cannot be read."""
        pairs = list(zip(_blocks(certificates), _blocks(keys), strict=True))
        if not pairs:
            raise ValueError("there is no certificate")
        return [Authority(Pair(certificate, key)) for certificate, key in pairs]

    @property
    def bundle(self) -> bytes:
        """All certificates."""
        return b"".join(each.pair.certificate for each in self.trusted)

    @property
    def keys(self) -> bytes:
        """All keys, as PEM, in the order of `bundle`."""
        return b"".join(each.pair.key for each in self.trusted)

    def accept(self, certificate: bytes, hosts: Sequence[str], now: datetime.datetime) -> bool:
        """Whether a certificate (PEM) has a trusted signer and these DNS names, and is not due for renewal."""
        try:
            found = x509.load_pem_x509_certificate(certificate)
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound):
            return False
        if _life(found).due(now) or not any(each.signed(found) for each in self.trusted):
            return False
        return set(hosts) <= set(names.get_values_for_type(x509.DNSName))

    def equip(self, context: ssl.SSLContext, pair: Pair) -> None:
        """Make a client's context trust these authorities and present `pair`. The context may be in use.

        Authorities that it already trusts stay trusted; the bundle drops only expired ones.
        """
        context.load_verify_locations(cadata=self.bundle.decode())
        load_pair(context, pair.certificate, pair.key)


def client_context() -> ssl.SSLContext:
    """A TLS 1.3 client context that trusts no authority yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


_OTHER_USES = (
    "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _life(certificate: x509.Certificate) -> Life:
    return Life(certificate.not_valid_before_utc + SKEW, certificate.not_valid_after_utc)


def _blocks(pem: bytes) -> list[bytes]:
    return re.findall(rb"-----BEGIN .+?-----END [A-Z ]+-----\n?", pem, re.DOTALL)


def _pair(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    life: Life,
    *extensions: x509.ExtensionType,
    ca: bool = False,
) -> Pair:
    others = dict.fromkeys(_OTHER_USES, False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=ca, crl_sign=ca, **others)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(life.begins - SKEW)
        .not_valid_after(life.ends)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in (*extensions, x509.SubjectKeyIdentifier.from_public_key(key.public_key())):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    encoding, format_ = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Pair(certificate, key.private_bytes(encoding, format_, serialization.NoEncryption()))


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a certificate and its key, both PEM, through a temporary file: the ssl module reads only files."""
    handle, name = tempfile.mkstemp(prefix="atoll-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)
