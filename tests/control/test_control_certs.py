"""Certificates of a run are renewed in its Secrets before they end, and no pod is touched."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest
from cryptography import x509

from atoll_operator.certificates.authority import Authorities, Authority
from atoll_operator.certificates.rotation import LEAF_LIFE

pytestmark = [pytest.mark.control, pytest.mark.timeout(400)]
MEMBERS = ("r-syncer", "r-one-0", "r-two-0")
DAY = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def datum(bench: Any, secret: str, key: str) -> bytes:
    return base64.b64decode(bench.get("Secret", secret)["data"][key])


def put(bench: Any, secret: str, **data: bytes) -> None:
    """`ca_crt` stands for `ca.crt`."""
    encoded = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
    bench.api.patch("Secret", bench.namespace, secret, {"data": encoded})


def certificate(bench: Any, member: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(datum(bench, f"{member}-tls", "tls.crt"))


def authorities(bench: Any) -> list[Authority]:
    data = bench.get("Secret", "r-ca")["data"]  # in one read: the operator writes both in one
    return Authorities.load(base64.b64decode(data["ca.crt"]), base64.b64decode(data["ca.key"]))


def uids(bench: Any) -> set[str]:
    return {pod["metadata"]["uid"] for pod in bench.pods().values()}


@pytest.fixture
def run(bench: Any) -> Any:
    """A run whose syncer answers, under an operator that looks at everything each second."""
    bench.operator(ATOLL_RESYNC_SECONDS="1")
    run = bench.run(units=1)
    bench.until("all pods", lambda: len(bench.pods()) == 3, 40)
    bench.serve(run)
    bench.until(
        "the syncer is heard", lambda: bench.get("TrainingRun", "r")["status"].get("globalStep") == 10
    )
    return run


def test_a_certificate_that_nears_its_end_is_renewed_by_the_same_authority(bench: Any, run: Any) -> None:
    pods, ca = uids(bench), datum(bench, "r-ca", "ca.crt")
    first = certificate(bench, "r-one-0")
    assert first.not_valid_after_utc - first.not_valid_before_utc < LEAF_LIFE + DAY
    others = {member: certificate(bench, member).serial_number for member in ("r-syncer", "r-two-0")}
    (authority,) = authorities(bench)
    uri = "spiffe://atoll.dev/old"
    old = authority.issue("r-one-0", uri, ["r-one-0"], now() - 61 * DAY)
    put(bench, "r-one-0-tls", tls_crt=old.certificate, tls_key=old.key)
    bench.until(
        "renewed", lambda: certificate(bench, "r-one-0").not_valid_after_utc > now() + LEAF_LIFE - DAY, 90
    )
    renewed = certificate(bench, "r-one-0")
    renewed.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    name = x509.SubjectAlternativeName
    assert renewed.extensions.get_extension_for_class(name) == first.extensions.get_extension_for_class(name)
    assert others == {member: certificate(bench, member).serial_number for member in others}
    assert (uids(bench), datum(bench, "r-ca", "ca.crt")) == (pods, ca)


def test_an_authority_that_nears_its_end_is_followed_by_another_while_both_are_trusted(
    bench: Any, run: Any
) -> None:
    pods = uids(bench)
    aged = Authorities([one := Authority.new("r", now() - 800 * DAY)], one)
    put(bench, "r-ca", ca_crt=aged.bundle, ca_key=aged.keys)
    bench.until("a successor", lambda: len(authorities(bench)) == 2, 90)
    bundle = datum(bench, "r-ca", "ca.crt")
    assert bundle.startswith(aged.bundle)
    for member in MEMBERS:
        bench.until("all know both", lambda m=member: datum(bench, f"{m}-tls", "ca.crt") == bundle, 90)
        assert one.signed(certificate(bench, member))

    # A day later the successor signs; years later the first one has ended and is trusted no more.
    old, new = Authority.new("r", now() - 1100 * DAY), Authority.new("r", now() - 300 * DAY)
    late = Authorities([old, new], new)
    put(bench, "r-ca", ca_crt=late.bundle, ca_key=late.keys)
    only = new.pair.certificate
    for member in MEMBERS:
        bench.until("one is left", lambda m=member: datum(bench, f"{m}-tls", "ca.crt") == only, 90)
        assert new.signed(certificate(bench, member))
    assert uids(bench) == pods

    # The operator goes on hearing the syncer.
    bench.serve(run, globalStep=11)
    bench.until("heard", lambda: bench.get("TrainingRun", "r")["status"].get("globalStep") == 11, 90)


def test_a_broken_authority_is_told_in_the_status_and_healed_by_deleting_it(bench: Any, run: Any) -> None:
    put(bench, "r-ca", ca_crt=b"nothing")
    bench.until("told", lambda: "r-ca" in bench.get("TrainingRun", "r")["status"].get("message", ""), 90)
    bench.api.delete("Secret", bench.namespace, "r-ca")
    bench.until("made anew", lambda: len(authorities(bench)) == 1, 90)
    bundle = datum(bench, "r-ca", "ca.crt")
    for member in MEMBERS:
        bench.until("all know it", lambda m=member: datum(bench, f"{m}-tls", "ca.crt") == bundle, 90)
