"""Certificates of a run are renewed in its Secrets before they end, and no pod is touched."""

from __future__ import annotations

import base64
import datetime

import pytest
from control_bench import Bench
from cryptography import x509

from atoll_operator.certificates.authority import LEAF_LIFE, Authorities, Authority

pytestmark = [pytest.mark.control, pytest.mark.timeout(400)]
MEMBERS = ("r-syncer", "r-one-0", "r-two-0")
DAY = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def datum(bench: Bench, secret: str, key: str) -> bytes:
    return base64.b64decode(bench.get("Secret", secret)["data"][key])


def put(bench: Bench, secret: str, **data: bytes) -> None:
    """`ca_crt` means `ca.crt`."""
    encoded = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
    bench.patch("Secret", secret, {"data": encoded})


def certificate(bench: Bench, member: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(datum(bench, f"{member}-tls", "tls.crt"))


def authorities(bench: Bench) -> list[Authority]:
    data = bench.get("Secret", "r-ca")["data"]  # in one read: the operator writes both in one
    return Authorities.load(base64.b64decode(data["ca.crt"]), base64.b64decode(data["ca.key"]))


def all_trust(bench: Bench, bundle: bytes) -> None:
    trusted = lambda: {datum(bench, f"{member}-tls", "ca.crt") for member in MEMBERS}  # noqa: E731
    bench.until("all trust the authorities", lambda: trusted() == {bundle}, 90)


def test_certificates_and_authorities_are_renewed_before_they_end_and_no_pod_is_touched(bench: Bench) -> None:
    bench.operator(ATOLL_RESYNC_SECONDS="1")
    run, _ = bench.learn(units=1)
    pods, ca, first = bench.uids(), datum(bench, "r-ca", "ca.crt"), certificate(bench, "r-one-0")
    assert first.not_valid_after_utc - first.not_valid_before_utc < LEAF_LIFE + DAY
    others = {member: certificate(bench, member).serial_number for member in ("r-syncer", "r-two-0")}
    (authority,) = authorities(bench)
    old = authority.issue("r-one-0", "spiffe://atoll.dev/old", ["r-one-0"], now() - 61 * DAY)
    put(bench, "r-one-0-tls", tls_crt=old.certificate, tls_key=old.key)
    fresh = now() + LEAF_LIFE - DAY
    bench.until("renewed", lambda: certificate(bench, "r-one-0").not_valid_after_utc > fresh, 90)
    renewed, name = certificate(bench, "r-one-0"), x509.SubjectAlternativeName
    renewed.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    assert renewed.extensions.get_extension_for_class(name) == first.extensions.get_extension_for_class(name)
    assert others == {member: certificate(bench, member).serial_number for member in others}
    assert datum(bench, "r-ca", "ca.crt") == ca

    # An authority near its end gets a successor, and both are trusted.
    aged = Authorities([one := Authority.new("r", now() - 800 * DAY)], one)
    put(bench, "r-ca", ca_crt=aged.bundle, ca_key=aged.keys)
    bench.until("a successor", lambda: len(authorities(bench)) == 2, 90)
    bundle = datum(bench, "r-ca", "ca.crt")
    assert bundle.startswith(aged.bundle)
    all_trust(bench, bundle)
    assert all(one.signed(certificate(bench, member)) for member in MEMBERS)

    # A day later the successor signs; years later the first one has ended and is trusted no more.
    ended, new = Authority.new("r", now() - 1100 * DAY), Authority.new("r", now() - 300 * DAY)
    late = Authorities([ended, new], new)
    put(bench, "r-ca", ca_crt=late.bundle, ca_key=late.keys)
    all_trust(bench, new.pair.certificate)
    assert all(new.signed(certificate(bench, member)) for member in MEMBERS)
    bench.serve(run, globalStep=11)  # the operator still hears the syncer
    bench.until("heard", lambda: bench.status("TrainingRun", "r").get("globalStep") == 11, 90)

    # A broken authority is reported, and made again once somebody deletes it.
    put(bench, "r-ca", ca_crt=b"nothing")
    bench.until("reported", lambda: "r-ca" in bench.status("TrainingRun", "r").get("message", ""), 90)
    bench.delete("Secret", "r-ca")
    bench.until("made again", lambda: len(authorities(bench)) == 1, 90)
    all_trust(bench, datum(bench, "r-ca", "ca.crt"))
    assert bench.uids() == pods
