"""The Secrets of a run: its authority, and one certificate for its syncer and for each unit. Read by name only."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from atoll_operator.api.group import (
    LABEL_MANAGER,
    LABEL_RUN,
    MANAGER,
    RUN_KIND,
    Object,
    controller_uid,
    owner,
)
from atoll_operator.certs import Authority, Pair, covers
from atoll_operator.cluster import Cluster
from atoll_operator.errors import AlreadyExists, NotFound, Retry
from atoll_operator.plan.names import ca_secret, shard_host, syncer, syncer_host, tls_secret
from atoll_runtime.contract import identity


@dataclass(slots=True)
class _Known:
    authority: Authority
    context: ssl.SSLContext
    """Of the operator as a client of the syncer; its certificate lives in memory only."""
    issued: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Members whose Secret is known to be there, and the host names that its certificate has."""


class Identities:
    """By uid of the run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, _Known] = {}

    async def ensure(
        self, namespace: str, run: str, uid: str, shards: int, units: Iterable[str]
    ) -> ssl.SSLContext:
        """Creates what is missing; a Secret that is there is rewritten only when its certificate lacks a host name.

        Raises:
            Retry: a Secret of an earlier run of this name has not gone yet.
        """
        known = self._known.get(uid)
        if known is None:
            known = self._known[uid] = await self._open(namespace, run, uid)
        members = {syncer(run): _syncer_hosts(namespace, run, shards), **{unit: (unit,) for unit in units}}
        missing = {member: hosts for member, hosts in members.items() if known.issued.get(member) != hosts}
        await asyncio.gather(
            *(self._issue(known, namespace, run, uid, member, hosts) for member, hosts in missing.items())
        )
        known.issued.update(missing)
        return known.context

    def review(self) -> None:
        """Has every Secret looked for again; a resync calls this."""
        for known in self._known.values():
            known.issued.clear()

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    async def _open(self, namespace: str, run: str, uid: str) -> _Known:
        name = ca_secret(run)
        try:
            secret = await self._cluster.get("Secret", namespace, name)
        except NotFound:
            new = Authority.new(run).pair
            data = {"ca.crt": new.certificate, "ca.key": new.key}
            secret = await self._create(_secret(name, namespace, run, uid, "Opaque", data))
        _own(secret, uid)
        authority = Authority(Pair(_datum(secret, "ca.crt"), _datum(secret, "ca.key")))
        pair = authority.issue("atoll-operator", identity(namespace, run, "operator", "operator"))
        return _Known(authority, authority.client_context(pair))

    async def _issue(
        self, known: _Known, namespace: str, run: str, uid: str, member: str, hosts: tuple[str, ...]
    ) -> None:
        def new() -> Object:
            role: Literal["syncer", "unit"] = "syncer" if member == syncer(run) else "unit"
            pair = known.authority.issue(member, identity(namespace, run, role, member), hosts)
            data = {
                "ca.crt": known.authority.pair.certificate,
                "tls.crt": pair.certificate,
                "tls.key": pair.key,
            }
            return _secret(tls_secret(member), namespace, run, uid, "kubernetes.io/tls", data)

        try:
            secret = await self._cluster.get("Secret", namespace, tls_secret(member))
        except NotFound:
            secret = await self._create(new())
        _own(secret, uid)
        if not covers(_datum(secret, "tls.crt"), hosts):
            await self._cluster.apply(new())

    async def _create(self, secret: Object) -> Object:
        """Or what another operator created in the same moment."""
        try:
            return await self._cluster.create(secret)
        except AlreadyExists:
            metadata = secret["metadata"]
            return await self._cluster.get("Secret", metadata["namespace"], metadata["name"])


def _syncer_hosts(namespace: str, run: str, shards: int) -> tuple[str, ...]:
    """One certificate for all shards: the Service's names, and each pod's own."""
    service = (syncer(run), f"{syncer(run)}.{namespace}", syncer_host(run, namespace))
    return (*service, *(shard_host(run, namespace, shard) for shard in range(shards)))


def _secret(name: str, namespace: str, run: str, uid: str, kind: str, data: dict[str, bytes]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_MANAGER: MANAGER, LABEL_RUN: run},
            "ownerReferences": [owner(RUN_KIND, run, uid)],
        },
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _own(secret: Object, uid: str) -> None:
    if controller_uid(secret) != uid:
        name = secret["metadata"]["name"]
        raise Retry(
            2.0, f"Secret {name!r} belongs to another object; delete it or use another name for the run"
        )


def _datum(secret: Object, key: str) -> bytes:
    return base64.b64decode(secret["data"][key])
