"""The certificate authority of a run, its members, and the host names in their certificates. It does not need the API
client: `atoll try` uses it too."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll_operator.api.group import RUN_KIND, UNIT_KIND, Object, owner
from atoll_operator.plan.pods import names
from atoll_runtime.contract import identity

LEAF_LIFE = datetime.timedelta(days=90)
"""Lifetime of a pod's certificate. It is renewed with 30 days left, so the operator may be down for that long."""
AUTHORITY_LIFE = datetime.timedelta(days=10 * 365)
"""Longer than any run, so that no pod needs to trust two authorities at a time."""
SKEW = datetime.timedelta(minutes=5)
"""A certificate is valid from this long before its creation, for pods whose clock is behind."""
_OTHER_USES = (
    "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The run that owns the Secrets."""

    namespace: str
    name: str
    uid: str

    def reference(self) -> Object:
        return owner(RUN_KIND, self.name, self.uid)

    def __str__(self) -> str:
        return f"{RUN_KIND} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a run that has a certificate."""

    name: str
    role: Literal["syncer", "evaluator", "unit"]
    hosts: tuple[str, ...]
    unit_uid: str = ""
    """Uid of a unit created by a user. That unit owns its Secret. Empty: the run owns the Secret."""

    def identity(self, run: RunOwner) -> str:
        return identity(run.namespace, run.name, self.role, self.name)

    def owner(self, run: RunOwner) -> Object:
        return owner(UNIT_KIND, self.name, self.unit_uid) if self.unit_uid else run.reference()


def members(run: RunOwner, shards: int, units: Mapping[str, str]) -> list[Member]:
    """Syncer and units. `units` maps names to uids for units created by users, to empty strings for the run's own."""
    run_name, namespace, syncer = run.name, run.namespace, names.syncer(run.name)
    service = (syncer, f"{syncer}.{namespace}", names.syncer_host(run_name, namespace))
    pods = (names.shard_host(run_name, namespace, shard) for shard in range(shards))
    return [Member(syncer, "syncer", (*service, *pods)), *(unit_member(*unit) for unit in units.items())]


def evaluator_member(run: RunOwner) -> Member:
    return Member(names.evaluator(run.name), "evaluator", (names.evaluator_host(run.name, run.namespace),))


def unit_member(name: str, uid: str = "") -> Member:
    return Member(name, "unit", (name,), uid)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority of one run. Raises ValueError if certificate or key cannot be read."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the run's certificate authority is not an EC key")
        self._key = key

    @classmethod
    def new(cls, run: str, now: datetime.datetime) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        # The operator's context may trust two authorities; the same subject would confuse it.
        name = _name(f"atoll {now:%Y-%m-%d} {run}")
        return cls(_pair(name, key, name, key, now, now + AUTHORITY_LIFE, ca=True))

    def issue(self, common_name: str, uri: str, hosts: Sequence[str], now: datetime.datetime) -> Pair:
        """A certificate for clients and servers. `uri` is the identity, `hosts` are DNS names."""
        subjects = [x509.UniformResourceIdentifier(uri), *map(x509.DNSName, hosts)]
        extensions = (
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            x509.SubjectAlternativeName(subjects),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )
        key, issuer = ec.generate_private_key(ec.SECP256R1()), self.certificate.subject
        return _pair(_name(common_name), key, issuer, self._key, now, now + LEAF_LIFE, *extensions)

    def accept(self, certificate: bytes, hosts: Sequence[str], now: datetime.datetime) -> bool:
        """Whether a certificate (PEM) is signed by this authority, has these DNS names and is not due for renewal."""
        try:
            found = x509.load_pem_x509_certificate(certificate)
            subjects = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return False
        return not is_due(found, now) and set(hosts) <= set(subjects.get_values_for_type(x509.DNSName))

    def files(self, pair: Pair) -> dict[str, bytes]:
        """The files of a pod with this certificate, by name."""
        return {"ca.crt": self.pair.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}

    def write(self, folder: Path, pair: Pair) -> None:
        """Writes these files for a process that does not run in a pod."""
        for name, content in self.files(pair).items():
            (folder / name).write_bytes(content)

    def equip(self, context: ssl.SSLContext, pair: Pair) -> None:
        """Make a client's context trust this authority and present `pair`. The context may be in use; an authority that
        it already trusts stays trusted."""
        context.load_verify_locations(cadata=self.pair.certificate.decode())
        load_pair(context, pair.certificate, pair.key)


def client_context() -> ssl.SSLContext:
    """A TLS 1.3 client context that trusts no authority yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def self_signed(name: str) -> ssl.SSLContext:
    """A TLS 1.3 server's context with a new certificate, for clients that cannot check it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    pair = Authority.new(name, datetime.datetime.now(datetime.UTC)).pair
    load_pair(context, pair.certificate, pair.key)
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a certificate and its key, both PEM, through a temporary file: the ssl module reads only files."""
    with tempfile.NamedTemporaryFile(prefix="atoll-") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def is_due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether a third of its lifetime or less is left, or it is not valid yet because the clock was ahead."""
    begins, ends = certificate.not_valid_before_utc + SKEW, certificate.not_valid_after_utc
    return now < begins - SKEW or ends - now <= (ends - begins) / 3


def _pair(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
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
        .not_valid_before(begins - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in (*extensions, x509.SubjectKeyIdentifier.from_public_key(key.public_key())):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    encoding, format_ = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Pair(certificate, key.private_bytes(encoding, format_, serialization.NoEncryption()))
