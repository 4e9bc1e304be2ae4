"""Keeps the Secrets of runs: the authorities of a run, and the certificates of its syncer, evaluator and units.

They are read by name only. Each is checked again when it was changed and at every resync, and renewed in place before
it expires. The kubelet updates the files in the pods, which use them for new connections. No pod restarts.
"""

from __future__ import annotations

import datetime
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll_operator.api.group import Object
from atoll_operator.certificates.authority import Authorities, Pair, client_context
from atoll_operator.certificates.members import Member, RunOwner, secret_body, secret_value, unit_member
from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import check_owner
from atoll_operator.kube.cache import Cache
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import AlreadyExists, NotFound, Refused
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.kube.keys import Key, ObjectVersion, object_version
from atoll_operator.kube.logs import tell
from atoll_operator.plan.pods.names import ca_secret, tls_secret
from atoll_runtime.contract import identity


@dataclass(slots=True)
class _Known:
    """What is known of one run's Secrets."""

    context: ssl.SSLContext = field(default_factory=client_context)
    """The operator's context as a client of the syncer. The pollers keep it, so it is renewed in place."""
    pair: Pair = field(default_factory=lambda: Pair(b"", b""))
    """The operator's own certificate; kept in memory only."""
    authorities: Authorities | None = None
    """None: must be read again."""
    read: ObjectVersion | None = None
    """Version of the Secret that they were read from."""
    issued: dict[str, tuple[Member, ObjectVersion]] = field(default_factory=dict)
    """Members whose Secret is known to be correct, by name, with the version of that Secret."""


class Certificates:
    """Issues and renews the Secrets of all runs. State is kept by the run's uid."""

    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._known: dict[str, _Known] = {}

    async def ensure(self, run: RunOwner, members: Sequence[Member]) -> ssl.SSLContext:
        """Create missing Secrets, and renew those that are due or lack a host name or an authority.

        Returns:
            The context with which the operator connects to the run's pods.

        Raises:
            Retry: a Secret of an earlier run or unit of this name still exists.
            Refused: the Secret of the authorities cannot be read, or another owner has one of the names.
        """
        known = self._known.setdefault(run.uid, _Known())
        authorities = known.authorities
        if authorities is None or self._version(run, ca_secret(run.name)) != known.read:
            authorities = await self._open(known, run)
            if known.authorities is None or authorities.bundle != known.authorities.bundle:
                known.issued.clear()
            known.authorities = authorities

        async def issue(member: Member) -> None:
            known.issued[member.name] = (member, await self._issue(authorities, run, member))

        missing = [member for member in members if not self._is_current(known, run, member)]
        await gather_bounded(map(issue, missing), AT_ONCE)
        return known.context

    async def add(self, run: RunOwner, unit: str) -> None:
        """Create the Secret of a new unit without reading it first. Call `ensure` before.

        Raises:
            Retry: a Secret of an earlier run or unit of this name still exists.
            Refused: another owner has a Secret of this name.
        """
        known, member = self._known[run.uid], unit_member(unit)
        if known.authorities is not None and not self._is_current(known, run, member):
            known.issued[unit] = (member, await self._issue(known.authorities, run, member, new=True))

    def review(self, uid: str) -> None:
        """Check every Secret of the run again at the next `ensure`. Called at a resync."""
        if known := self._known.get(uid):
            known.authorities = None
            known.issued.clear()

    def revoke(self, uid: str, member: str) -> None:
        """Forget a deleted member, so that its Secret is checked when it comes back."""
        if known := self._known.get(uid):
            known.issued.pop(member, None)

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    def _is_current(self, known: _Known, run: RunOwner, member: Member) -> bool:
        """Whether the member's Secret exists unchanged."""
        version = self._version(run, tls_secret(member.name))
        return version is not None and known.issued.get(member.name) == (member, version)

    def _version(self, run: RunOwner, secret: str) -> ObjectVersion | None:
        return self._cache.version(Key("Secret", run.namespace, secret))

    def _store(self, secret: Object) -> ObjectVersion:
        """Put the API server's answer into the cache and return its version."""
        self._cache.put("Secret", secret)
        return object_version("Secret", secret)

    async def _open(self, known: _Known, run: RunOwner) -> Authorities:
        """Read or create the authorities, add a successor if one is due, and renew the operator's certificate."""
        now, name = _now(), ca_secret(run.name)

        def body(authorities: Authorities) -> Object:
            data = {"ca.crt": authorities.bundle, "ca.key": authorities.keys}
            return secret_body(name, run, run.reference(), "Opaque", data)

        try:
            secret = await self._cluster.get("Secret", run.namespace, name)
        except NotFound:
            secret = await self._create(body(Authorities.of(run.name, (), now)))
        check_owner(secret, "Secret", run.reference(), LABELS)
        try:
            stored = Authorities.load(secret_value(secret, "ca.crt"), secret_value(secret, "ca.key"))
        except ValueError as error:
            mend = "delete it to have a new one created"
            problem = f"Secret {name!r} holds no authority of the run: {error}; {mend}"
            raise Refused(422, "Invalid", problem) from error
        authorities = Authorities.of(run.name, stored, now)
        if authorities.bundle != secret_value(secret, "ca.crt"):
            new = body(authorities)
            new["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
            secret = await self._cluster.apply(new)
            count = len(authorities.trusted)
            tell(logging.INFO, "the run's authorities changed", object=str(run), trusted=count)
        if not authorities.accept(known.pair.certificate, (), now):
            uri = identity(run.namespace, run.name, "operator", "operator")
            known.pair = authorities.signer.issue("atoll-operator", uri, (), now)
        authorities.equip(known.context, known.pair)
        known.read = self._store(secret)
        return authorities

    async def _issue(
        self, authorities: Authorities, run: RunOwner, member: Member, new: bool = False
    ) -> ObjectVersion:
        """Create or renew one Secret, or leave it as it is; `new`: it is not expected to exist."""
        now, name, owned = _now(), tls_secret(member.name), member.owner(run)

        def body() -> Object:
            pair = authorities.signer.issue(member.name, member.identity(run), member.hosts, now)
            data = {"ca.crt": authorities.bundle, "tls.crt": pair.certificate, "tls.key": pair.key}
            return secret_body(name, run, owned, "kubernetes.io/tls", data)

        try:
            found = None if new else await self._cluster.get("Secret", run.namespace, name)
        except NotFound:
            found = None
        secret = await self._create(body()) if found is None else found
        check_owner(secret, "Secret", owned, LABELS)
        current = secret_value(secret, "ca.crt") == authorities.bundle
        if not current or not authorities.accept(secret_value(secret, "tls.crt"), member.hosts, now):
            secret = await self._cluster.apply(body())
            tell(logging.INFO, "a certificate was renewed", object=str(run), secret=name)
        return self._store(secret)

    async def _create(self, secret: Object) -> Object:
        """Create the Secret, or return the one that another operator created at the same time."""
        try:
            return await self._cluster.create(secret)
        except AlreadyExists:
            metadata = secret["metadata"]
            return await self._cluster.get("Secret", metadata["namespace"], metadata["name"])


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
