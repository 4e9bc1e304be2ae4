"""Keeps the Secrets of a run: its authority, and the certificates of its syncer, evaluator and units. They are read by
name only. Each is checked after a change, once a day and when the clock went back, and renewed in place before it
expires. The kubelet updates the files in the pods, which use them for new connections. No pod restarts."""

from __future__ import annotations

import base64
import contextlib
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence

from atoll_operator.api.group import Object, metadata
from atoll_operator.certificates.authority import SKEW, Authority, Member, Pair, RunOwner, client_context
from atoll_operator.cluster import Cluster
from atoll_operator.kube.apply import check_owner, found_or_created
from atoll_operator.kube.cache import Cache, Key
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import NotFound, Refused
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import gather_bounded
from atoll_operator.plan.pods.names import ca_secret, tls_secret
from atoll_runtime.contract import identity

CHECK = datetime.timedelta(days=1)
"""Time between two checks of all Secrets."""


class RunCertificates:
    """Issues and renews the Secrets of one run. Marks in the cache tell which were checked, and for what."""

    def __init__(self, cluster: Cluster, cache: Cache, run: RunOwner) -> None:
        self._cluster, self._cache, self.run = cluster, cache, run
        self.context = client_context()
        """The operator's context as a client of the run's pods. Connections keep it, so it is renewed in place."""
        self._pair = Pair(b"", b"")
        """The operator's own certificate; kept in memory only."""
        self._authority: Authority | None = None
        self._begun = self._newest = datetime.datetime.fromtimestamp(0, datetime.UTC)
        """When the present check of all began, which is in the marks, and the newest time since then."""

    async def ensure(self, members: Sequence[Member], now: datetime.datetime) -> None:
        """Create missing Secrets, and renew those that are due, lack a host name or come from another authority. Raises
        Retry while a Secret of an earlier run or unit of this name exists, and Refused if the authority's Secret cannot
        be read or an object of another owner has one of the names."""
        if now >= self._begun + CHECK or now < self._newest - SKEW:
            self._begun = self._newest = now
        self._newest = max(self._newest, now)
        begun = self._begun
        if self._authority is None or self._mark_of(ca_secret(self.run.name)) != begun:
            self._authority = await self._open(now)
        authority, certificate = self._authority, self._authority.pair.certificate
        due = [each for each in members if self._mark_of(tls_secret(each.name)) != (begun, certificate, each)]
        await gather_bounded((self._issue(authority, each, now) for each in due), AT_ONCE)

    def _mark_of(self, secret: str) -> object:
        entry = self._cache.get(Key("Secret", self.run.namespace, secret))
        return entry and entry.mark

    async def _open(self, now: datetime.datetime) -> Authority:
        """Read or create the authority, and renew the operator's own certificate."""
        run, name = self.run, ca_secret(self.run.name)

        def body() -> Object:
            pair = Authority.new(run.name, now).pair
            data = {"ca.crt": pair.certificate, "ca.key": pair.key}
            return self._body(name, run.reference(), "Opaque", data)

        secret = await self._find(name, body)
        check_owner(secret, run.reference())
        authority = _authority(secret)
        if not authority.accept(self._pair.certificate, (), now):
            uri = identity(run.namespace, run.name, "operator", "operator")
            self._pair = authority.issue("atoll-operator", uri, (), now)
        authority.equip(self.context, self._pair)
        self._cache.mark("Secret", secret, self._begun)
        return authority

    async def _issue(self, authority: Authority, member: Member, now: datetime.datetime) -> None:
        run, name, owned = self.run, tls_secret(member.name), member.owner(self.run)

        def body() -> Object:
            pair = authority.issue(member.name, member.identity(run), member.hosts, now)
            return self._body(name, owned, "kubernetes.io/tls", authority.files(pair))

        secret = await self._find(name, body)
        check_owner(secret, owned)
        current = _value(secret, "ca.crt") == authority.pair.certificate
        if not current or not authority.accept(_value(secret, "tls.crt"), member.hosts, now):
            secret = await self._cluster.apply(body())
            log(logging.INFO, "a certificate was renewed", object=str(run), secret=name)
        self._cache.mark("Secret", secret, (self._begun, authority.pair.certificate, member))

    async def _find(self, name: str, make: Callable[[], Object]) -> Object:
        """The Secret; it is created if it does not exist. One that is not known yet is created without a read."""
        namespace = self.run.namespace
        if self._cache.get(Key("Secret", namespace, name)) is not None:
            with contextlib.suppress(NotFound):
                return await self._cluster.get("Secret", namespace, name)
        return await found_or_created(self._cluster, make())

    def _body(self, name: str, owned: Object, kind: str, data: Mapping[str, bytes]) -> Object:
        named = metadata(name, self.run.namespace, self.run.name, owned)
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": named, "data": encoded}


def _value(secret: Object, key: str) -> bytes:
    return base64.b64decode(secret.get("data", {}).get(key, ""))


def _authority(secret: Object) -> Authority:
    try:
        return Authority(Pair(_value(secret, "ca.crt"), _value(secret, "ca.key")))
    except ValueError as error:
        problem = f"holds no authority of the run: {error}; delete it to have a new one created"
        raise Refused(f"Secret {secret['metadata']['name']!r} {problem}") from error
