"""Authorities and certificates of a run: who trusts whom, when they are renewed, and the Secrets that hold them."""

from __future__ import annotations

import contextlib
import datetime
import random
import ssl
from typing import Any

import pytest
from answering import pod_context
from hypothesis import given
from hypothesis import strategies as st
from memory_apiserver import Server, Weather
from memory_client import MemoryCluster

from atoll_operator.certificates.authority import (
    AUTHORITY_LIFE,
    DELIVERY,
    LEAF_LIFE,
    Authorities,
    Authority,
    Life,
    client_context,
)
from atoll_operator.certificates.members import RunOwner, members
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.kube.client import AT_ONCE, Request
from atoll_operator.reconcilers.inventory import Inventory

RUN = RunOwner("ns", "r", "run")
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


class Secrets(MemoryCluster):
    """The client of an operator that keeps the certificates of a run of so many units."""

    def __init__(self) -> None:
        super().__init__(Server(random.Random(0), Weather(request_seconds=0.001)))
        self.asked: list[tuple[str, str]] = []
        """Method and name of each request."""
        self.under_way = self.most_at_once = 0
        self.certificates = RunCertificates(self, Inventory().cache, RUN)

    async def _call(self, request: Request) -> Any:
        name = request.body["metadata"]["name"] if request.body else request.path.rpartition("/")[2]
        self.asked.append((request.method, name))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            return await super()._call(request)
        finally:
            self.under_way -= 1

    async def ensure(self, units: int, now: datetime.datetime = NOW) -> list[tuple[str, str]]:
        """The requests that it took."""
        self.asked.clear()
        everybody = members(RUN, 1, {f"r-one-{number}": "" for number in range(units)}, False)
        await self.certificates.ensure(everybody, now)
        return list(self.asked)


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


async def test_secrets_are_created_without_a_read_and_each_is_read_again_once_a_day(secrets: Secrets) -> None:
    created = await secrets.ensure(5 * AT_ONCE)
    assert created[0] == ("POST", "r-ca") and {method for method, _ in created} == {"POST"}
    assert len(created) == 5 * AT_ONCE + 2 and secrets.most_at_once <= AT_ONCE
    assert await secrets.ensure(5 * AT_ONCE) == []
    assert await secrets.ensure(5 * AT_ONCE + 1) == [("POST", f"r-one-{5 * AT_ONCE}-tls")]
    again = await secrets.ensure(5 * AT_ONCE, NOW + DAY)
    assert sorted(again) == sorted(("GET", name) for _, name in created)
    assert await secrets.ensure(5 * AT_ONCE, NOW + DAY) == []


async def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left(secrets: Secrets) -> None:
    await secrets.ensure(1)
    assert "PATCH" not in dict(await secrets.ensure(1, NOW + 59 * DAY))
    renewed = [name for method, name in await secrets.ensure(1, NOW + 60 * DAY) if method == "PATCH"]
    assert sorted(renewed) == ["r-one-0-tls", "r-syncer-tls"]


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole TLS handshake in memory; raises what either side raises."""
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(one, two, server_hostname=name), server.wrap_bio(two, one, server_side=True)]
    done = [False, False]
    for _ in range(10):
        for index, side in enumerate(sides):
            if not done[index]:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                    done[index] = True
    with contextlib.suppress(ssl.SSLWantReadError):
        sides[0].read(1)
    assert all(done)


def server_context(authorities: Authorities, trust: Authorities) -> ssl.SSLContext:
    pair = authorities.signer.issue("r-syncer", "spiffe://atoll.dev/x", ["r-syncer.ns.svc"], NOW)
    return pod_context(trust.bundle, pair.certificate, pair.key)


def equipped(authorities: Authorities) -> ssl.SSLContext:
    context = client_context()
    authorities.equip(context, authorities.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    return context


def test_members_of_one_run_trust_each_other_and_no_other_run() -> None:
    ours, theirs = Authorities.of("r", (), NOW), Authorities.of("other", (), NOW)
    client = equipped(ours)
    handshake(server_context(ours, ours), client, "r-syncer.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(theirs, ours), client, "r-syncer.ns.svc")
    with pytest.raises(ssl.SSLError):
        handshake(server_context(ours, theirs), client, "r-syncer.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(ours, ours), client, "elsewhere.ns.svc")


def test_a_context_in_use_follows_a_succession() -> None:
    old = Authorities.of("r", [Authority.new("r", NOW - 900 * DAY)], NOW)
    client = equipped(Authorities([old.trusted[0]], old.signer))
    new = Authorities.of("r", old.trusted, NOW + 2 * DAY)
    assert new.signer is old.trusted[1]
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(new, new), client, "r-syncer.ns.svc")
    new.equip(client, new.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    handshake(server_context(new, new), client, "r-syncer.ns.svc")


def test_authorities_sign_the_same_after_they_were_stored() -> None:
    made = Authorities.of("r", [Authority.new("r", NOW - 900 * DAY)], NOW)
    read = Authorities.of("r", Authorities.load(made.bundle, made.keys), NOW)
    assert (read.bundle, read.keys, len(read.trusted)) == (made.bundle, made.keys, 2)
    pair = made.signer.issue("u", "spiffe://atoll.dev/u", ["u"], NOW)
    assert read.accept(pair.certificate, ["u"], NOW)
    with pytest.raises(ValueError, match="no certificate"):
        Authorities.load(b"", b"")
    with pytest.raises(ValueError, match="zip"):
        Authorities.load(made.bundle, made.signer.pair.key)


def test_a_certificate_is_accepted_for_its_names_by_its_authority_for_two_thirds_of_its_life() -> None:
    ours, theirs = Authorities.of("r", (), NOW), Authorities.of("r", (), NOW)
    certificate = ours.signer.issue("r-syncer", "spiffe://atoll.dev/x", ["one"], NOW).certificate
    assert ours.accept(certificate, ["one"], NOW + 59 * DAY)
    assert not ours.accept(certificate, ["one"], NOW + 60 * DAY)
    assert not ours.accept(certificate, ["one", "two"], NOW)
    assert not ours.accept(ours.bundle, ["one"], NOW)
    assert not ours.accept(b"no certificate", [], NOW)
    assert not theirs.accept(certificate, ["one"], NOW)


def test_a_successor_is_trusted_a_day_before_it_signs() -> None:
    first = Authorities.of("r", (), NOW)
    assert len(first.trusted) == 1 and first.signer is first.trusted[0], "a new run's signs at once"
    assert Authorities.of("r", first.trusted, NOW + DAY).trusted == first.trusted
    due = NOW + 2 * AUTHORITY_LIFE / 3
    both = Authorities.of("r", first.trusted, due)
    assert len(both.trusted) == 2 and both.signer is first.signer
    later = Authorities.of("r", both.trusted, due + DELIVERY)
    assert later.trusted == both.trusted and later.signer is both.trusted[1]
    assert Authorities.of("r", both.trusted, NOW + AUTHORITY_LIFE).trusted == both.trusted[1:]
    assert len(Authorities.of("r", first.trusted, NOW + AUTHORITY_LIFE).trusted) == 1, "all have expired"


@given(st.lists(st.floats(min_value=0.01, max_value=29.0), min_size=1, max_size=400))
def test_no_certificate_in_use_is_ever_without_its_authority(pauses: list[float]) -> None:
    """An operator looks at random moments, never more than 29 days apart; a leaf is signed at each where it is due."""
    now = NOW
    known = authorities = Authorities.of("r", (), now)  # what a pod trusted at the last look
    leaf, signer = Life(now, now + LEAF_LIFE), authorities.signer
    for pause in pauses:
        now += pause * DAY
        assert leaf.ends > now and signer.life.ends > now
        authorities = Authorities.of("r", authorities.trusted, now)
        assert signer in authorities.trusted and len(authorities.trusted) <= 2
        if leaf.due(now):
            signer = authorities.signer
            assert signer.life.begins + DELIVERY <= now or signer in known.trusted
            leaf = Life(now, min(now + LEAF_LIFE, signer.life.ends))
        known = authorities
