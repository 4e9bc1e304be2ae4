"""Leader election by a Lease. Each operator uses only its own monotonic clock, not the times in a Lease. A Lease has
expired when it has not changed for its whole duration. Its holder stops earlier: it counts from before it sent the last
renewal. The rates of two clocks may differ by 40 %."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import until_first

API_VERSION = "coordination.k8s.io/v1"
RENEW_SHARE = 0.2
"""Share of the lease's length after which a renewal is sent."""
DEADLINE_SHARE = 0.7
"""Share of the lease's length after which a holder that could not renew stops; three renewals were due by then."""
LOOK_SECONDS = 1.0
"""Time between two reads of another operator's lease, which may be released before it expires."""
QUICK_SECONDS = 0.1
"""Time until the next try after a renewal failed."""
RELEASE_SECONDS = 2.0
"""Time-out for releasing the lease. If that fails, it expires."""


def lease_name(prefix: str, namespaces: Collection[str]) -> str:
    """One lease for each set of namespaces: operators of different sets do not exclude each other."""
    if not namespaces:
        return prefix
    digest = hashlib.sha256(",".join(sorted(namespaces)).encode()).hexdigest()
    return f"{prefix}-{digest[:10]}"


class Leadership:
    """One operator's part in the election. Without a namespace it always leads. A lease with our identity is ours, even
    if an earlier process of this pod took it, because the kubelet starts a container again only after its last process
    has ended. Its client is not that of the reconcilers, because a renewal must not wait for a connection or a long
    time-out."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        seconds: int,
        labels: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._clock = client, clock
        self._metadata: Object = {"name": name, "namespace": namespace, "labels": dict(labels)}
        self._identity, self._seconds = identity, seconds
        self._spec: Object = {}
        """Spec of the lease, as last read or written."""
        self._since = 0.0
        """When this spec was first seen."""
        self._until = float("-inf")

    def leads(self) -> bool:
        """Whether this operator may write now."""
        return not self._metadata["namespace"] or self._clock() < self._until

    async def hold(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Until cancelled: waits for the lease, runs `work` while the lease is ours, and cancels it when the lease is
        lost. Raises Refused without rights to the lease, and what `work` raises."""
        if not self._metadata["namespace"]:
            return await work()
        try:
            while True:
                await self._acquire()
                try:
                    await until_first(work(), self._renew())
                finally:
                    self._until = float("-inf")
                self._log(logging.WARNING, "lost the lease; stands by")
        finally:
            await self._release()

    async def _acquire(self) -> None:
        logged = ""
        while not await self._take():
            if self._is_anothers and logged != self._holder:
                logged = self._holder
                self._log(logging.INFO, "stands by", holder=logged)
            left = self._since + self._duration - self._clock()
            wait = min(left, LOOK_SECONDS) if self._is_anothers else LOOK_SECONDS
            await asyncio.sleep(max(wait, 0.0) + random.uniform(0.0, QUICK_SECONDS))
        self._log(logging.INFO, "leads", identity=self._identity)

    async def _renew(self) -> None:
        """Returns when another operator has the lease, or it could not be renewed in time."""
        ours = True
        while not self._is_anothers and (left := self._until - self._clock()) > 0:
            wait = RENEW_SHARE * self._seconds * random.uniform(0.9, 1.1) if ours else QUICK_SECONDS
            await asyncio.sleep(min(wait, left))
            ours = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._until - self._clock(), 0.0)):
                    ours = await self._take()
        self._until = float("-inf")  # the work must not write while it ends

    @property
    def _holder(self) -> str:
        return self._spec.get("holderIdentity") or ""

    @property
    def _duration(self) -> float:
        return float(self._spec.get("leaseDurationSeconds") or self._seconds)

    @property
    def _is_anothers(self) -> bool:
        """Whether another operator has the lease, and it has not expired."""
        expired = self._since + self._duration <= self._clock()
        return self._holder not in ("", self._identity) and not expired

    async def _take(self) -> bool:
        """Acquires or renews the lease, unless another operator has it. Returns whether it is ours now."""
        sent, moment = self._clock(), _now()
        try:
            body = await self._look()
            if self._is_anothers:
                return False
            spec = {**self._spec, "holderIdentity": self._identity, "leaseDurationSeconds": self._seconds}
            spec["renewTime"] = moment
            if self._holder != self._identity:
                spec["acquireTime"] = moment
                spec["leaseTransitions"] = self._spec.get("leaseTransitions", 0) + bool(self._spec)
            if body is None:
                new = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": self._metadata, "spec": spec}
                body = await self._client.create(new)
            else:
                body = await self._client.replace({**body, "spec": spec})
        except (Conflict, AlreadyExists):
            return False  # another operator was quicker
        except (Unreachable, NotFound) as error:  # NotFound: there is no such namespace
            self._log(logging.WARNING, "cannot take or renew the lease", error=str(error))
            return False
        self._spec, self._since, self._until = body["spec"], sent, sent + DEADLINE_SHARE * self._seconds
        return True

    async def _look(self) -> Object | None:
        body: Object | None = None
        with contextlib.suppress(NotFound):
            body = await self._client.get("Lease", self._metadata["namespace"], self._metadata["name"])
        spec = {} if body is None else body["spec"]
        if spec != self._spec:
            self._spec, self._since = spec, self._clock()
        return body

    async def _release(self) -> None:
        if self._holder != self._identity:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                body = await self._look()  # a renewal that was broken off may have arrived
                if body is not None and self._holder == self._identity:
                    spec = {**body["spec"], "holderIdentity": "", "renewTime": _now()}
                    await self._client.replace({**body, "spec": spec})
                    self._log(logging.INFO, "gave the lease back")
        except (TimeoutError, Unreachable, ApiError) as error:
            self._log(logging.WARNING, "the lease was not given back", error=str(error))

    def _log(self, level: int, message: str, **fields: object) -> None:
        log(level, message, lease=self._metadata["name"], **fields)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
