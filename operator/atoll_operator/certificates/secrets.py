"""The Secrets of a run: its authorities, and the certificates of syncer, evaluator and each unit.

They are read by name only. Each is checked again when it was changed and at every resync, and renewed in place before
it expires. The kubelet updates the files in the pods, which use them for new connections. No pod restarts.
"""

from __future__ import annotations

import base64
import datetime
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from atoll_operator.api.group import (
    LABEL_MANAGER,
    LABEL_RUN,
    MANAGER,
    RUN_KIND,
    UNIT_KIND,
    Object,
    owner,
)
from atoll_operator.certificates.authority import Authorities, Pair, client_context
from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import check_owner
from atoll_operator.kube.cache import Cache
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import AlreadyExists, NotFound, Refused
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.kube.keys import Key, ObjectVersion, object_version
from atoll_operator.kube.logs import tell
from atoll_operator.plan.pods.names import (
    ca_secret,
    evaluator,
    evaluator_host,
    shard_host,
    syncer,
    syncer_host,
    tls_secret,
)
from atoll_runtime.contract import identity


@dataclass(frozen=True, slots=True)
class _Member:
    """An owner of a certificate."""

    name: str
    hosts: tuple[str, ...]
    """DNS names in the certificate."""
    unit: str = ""
    """Uid of a unit created by hand, which owns its Secret. Empty: the run owns the Secret."""


@dataclass(slots=True)
class _Known:
    context: ssl.SSLContext = field(default_factory=client_context)
    """The operator's context as a client of the syncer. The pollers keep it, so it is renewed in place."""
    pair: Pair = field(default_factory=lambda: Pair(b"", b""))
    """The operator's own certificate; kept in memory only."""
    authorities: Authorities | None = None
    """None: must be read again."""
    read: ObjectVersion | None = None
    """Version of the Secret that they were read from."""
    issued: dict[str, tuple[_Member, ObjectVersion]] = field(default_factory=dict)
    """Members whose Secret is known to be correct, by name, with the version of that Secret."""


class Identities:
    """Issues and renews the Secrets of all runs. State is kept by the run's uid."""

    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._known: dict[str, _Known] = {}

    async def ensure(
        self,
        namespace: str,
        run: str,
        uid: str,
        shards: int,
        units: Mapping[str, str],
        evaluated: bool = False,
    ) -> ssl.SSLContext:
        """Create missing Secrets, and renew those that are due or lack a host name or an authority.

        Args:
            units: by name; the uid of a unit created by hand, empty for the run's own.
            evaluated: whether the run has an evaluator.

        Raises:
            Retry: a Secret of an earlier run or unit of this name still exists.
            Refused: the Secret of the authorities cannot be read, or another owner has one of the names.
        """
        known = self._known.setdefault(uid, _Known())
        authorities = known.authorities
        if authorities is None or self._sight(namespace, ca_secret(run)) != known.read:
            authorities = await self._open(known, namespace, run, uid)
            if known.authorities is None or authorities.bundle != known.authorities.bundle:
                known.issued.clear()
            known.authorities = authorities
        members = [_Member(syncer(run), _syncer_hosts(namespace, run, shards))]
        members += [_Member(name, (name,), unit) for name, unit in units.items()]
        if evaluated:
            members.append(_Member(evaluator(run), (evaluator_host(run, namespace),)))
        missing = [member for member in members if not self._stands(known, namespace, member)]

        async def issue(member: _Member) -> None:
            known.issued[member.name] = (
                member,
                await self._issue(authorities, namespace, run, uid, member),
            )

        await gather_bounded(map(issue, missing), AT_ONCE)
        return known.context

    async def add(self, namespace: str, run: str, uid: str, unit: str) -> None:
        """Create the Secret of a new unit without reading it first. Call `ensure` before.

        Raises:
            Retry: a Secret of an earlier run or unit of this name still exists.
            Refused: another owner has a Secret of this name.
        """
        known, member = self._known[uid], _Member(unit, (unit,))
        if known.authorities is not None and not self._stands(known, namespace, member):
            sight = await self._issue(known.authorities, namespace, run, uid, member, new=True)
            known.issued[unit] = (member, sight)

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

    def _stands(self, known: _Known, namespace: str, member: _Member) -> bool:
        """Whether the member's Secret exists unchanged."""
        sight = self._sight(namespace, tls_secret(member.name))
        return sight is not None and known.issued.get(member.name) == (member, sight)

    def _sight(self, namespace: str, secret: str) -> ObjectVersion | None:
        return self._cache.version(Key("Secret", namespace, secret))

    def _seen(self, secret: Object) -> ObjectVersion:
        """Put the API server's answer into the cache and return its version."""
        self._cache.put("Secret", secret)
        return object_version("Secret", secret)

    async def _open(self, known: _Known, namespace: str, run: str, uid: str) -> Authorities:
        now = datetime.datetime.now(datetime.UTC)
        name = ca_secret(run)
        owned = owner(RUN_KIND, run, uid)
        describe = partial(_secret, name, namespace, run, owned, "Opaque")
        try:
            secret = await self._cluster.get("Secret", namespace, name)
        except NotFound:
            secret = await self._create(describe(_stored(Authorities.of(run, (), now))))
        check_owner(secret, "Secret", owned, LABELS)
        try:
            stored = Authorities.load(_datum(secret, "ca.crt"), _datum(secret, "ca.key"))
        except ValueError as error:
            problem = (
                f"Secret {name!r} holds no authority of the run: {error}; delete it to have a new one made"
            )
            raise Refused(422, "Invalid", problem) from error
        authorities = Authorities.of(run, stored, now)
        if authorities.bundle != _datum(secret, "ca.crt"):
            body = describe(_stored(authorities))
            body["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
            secret = await self._cluster.apply(body)
            tell(
                logging.INFO,
                "the run's authorities changed",
                object=f"{RUN_KIND} {namespace}/{run}",
                trusted=len(authorities.trusted),
            )
        if not authorities.accept(known.pair.certificate, (), now):
            uri = identity(namespace, run, "operator", "operator")
            known.pair = authorities.signer.issue("atoll-operator", uri, (), now)
        authorities.equip(known.context, known.pair)
        known.read = self._seen(secret)
        return authorities

    async def _issue(
        self,
        authorities: Authorities,
        namespace: str,
        run: str,
        uid: str,
        member: _Member,
        new: bool = False,
    ) -> ObjectVersion:
        now = datetime.datetime.now(datetime.UTC)
        name = member.name
        owned = owner(UNIT_KIND, name, member.unit) if member.unit else owner(RUN_KIND, run, uid)

        def made() -> Object:
            pair = authorities.signer.issue(
                name, identity(namespace, run, _role(run, name), name), member.hosts, now
            )
            data = {"ca.crt": authorities.bundle, "tls.crt": pair.certificate, "tls.key": pair.key}
            return _secret(tls_secret(name), namespace, run, owned, "kubernetes.io/tls", data)

        try:
            secret = (
                await self._create(made())
                if new
                else await self._cluster.get("Secret", namespace, tls_secret(name))
            )
        except NotFound:
            secret = await self._create(made())
        check_owner(secret, "Secret", owned, LABELS)
        current = _datum(secret, "ca.crt") == authorities.bundle
        if not current or not authorities.accept(_datum(secret, "tls.crt"), member.hosts, now):
            secret = await self._cluster.apply(made())
            about = f"{RUN_KIND} {namespace}/{run}"
            tell(logging.INFO, "a certificate was renewed", object=about, secret=tls_secret(name))
        return self._seen(secret)

    async def _create(self, secret: Object) -> Object:
        """Create the Secret, or return the one that another operator created at the same time."""
        try:
            return await self._cluster.create(secret)
        except AlreadyExists:
            metadata = secret["metadata"]
            return await self._cluster.get("Secret", metadata["namespace"], metadata["name"])


def _syncer_hosts(namespace: str, run: str, shards: int) -> tuple[str, ...]:
    """DNS names of the one certificate for all shards: those of the Service and of each pod."""
    service = (syncer(run), f"{syncer(run)}.{namespace}", syncer_host(run, namespace))
    return (*service, *(shard_host(run, namespace, shard) for shard in range(shards)))


def _role(run: str, name: str) -> Literal["syncer", "evaluator", "unit"]:
    if name == syncer(run):
        return "syncer"
    return "evaluator" if name == evaluator(run) else "unit"


def _secret(name: str, namespace: str, run: str, owned: Object, kind: str, data: dict[str, bytes]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_MANAGER: MANAGER, LABEL_RUN: run},
            "ownerReferences": [owned],
        },
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _stored(authorities: Authorities) -> dict[str, bytes]:
    return {"ca.crt": authorities.bundle, "ca.key": authorities.keys}


def _datum(secret: Object, key: str) -> bytes:
    """Decoded value of a key; empty if absent."""
    return base64.b64decode(secret.get("data", {}).get(key, ""))
