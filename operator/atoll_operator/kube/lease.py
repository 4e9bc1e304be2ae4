"""Leader election by a Lease. `pause` is the rule, `Leadership` carries it out.

Written times are not used: a lease has expired when it has not changed for its whole duration by our own monotonic
clock. Its holder stops earlier, counted from before it sent the last renewal; clock rates may differ by 40 %.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from atoll_operator.kube.gather import until_first
from atoll_operator.kube.logs import tell

API_VERSION = "coordination.k8s.io/v1"
RENEW_SHARE = 0.2
"""Share of the lease's length after which a renewal is sent."""
DEADLINE_SHARE = 0.7
"""Share of the lease's length after which a holder that could not renew stops; three renewals were due by then."""
LOOK_SECONDS = 1.0
"""Between two reads of another operator's lease, which may be released before it expires."""
QUICK_SECONDS = 0.1
"""Until the next try after somebody else wrote the lease, or a renewal failed."""
LONGEST_SECONDS = 120
"""Longest duration that is accepted in another holder's lease."""
RELEASE_SECONDS = 2.0
"""Time-out for releasing the lease. If that fails, it expires."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A lease as last read. `since` is when it was first seen in this state, by the monotonic clock."""

    holder: str
    seconds: float
    since: float


def pause(sight: Sight | None, identity: str, now: float) -> float:
    """Seconds to wait before the next look at a lease; 0: it may be taken. None: there is no lease.

    A lease with our identity is ours, also where an earlier process of this pod took it: the kubelet starts a
    container again only after its last process has ended.

    Args:
        now: in the seconds of `Sight.since`.
    """
    if sight is None or sight.holder in ("", identity):
        return 0.0
    return min(max(sight.since + sight.seconds - now, 0.0), LOOK_SECONDS)


def lease_name(prefix: str, namespaces: Collection[str]) -> str:
    """One lease for each set of namespaces: operators of different sets do not exclude each other."""
    if not namespaces:
        return prefix
    digest = hashlib.sha256(",".join(sorted(namespaces)).encode()).hexdigest()
    return f"{prefix}-{digest[:10]}"


class Leadership:
    """One operator's part in the election.

    Args:
        client: of its own, because a renewal must wait neither for a connection nor for a long time-out.
        labels: of the Lease.
    """

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
        self._client = client
        self._labels = labels
        self._clock = clock
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._seconds = seconds
        self._body: Object | None = None
        """The lease as last read or written."""
        self._sight: Sight | None = None
        self._until = float("-inf")

    def leads(self) -> bool:
        """Whether this operator may write now."""
        return self._clock() < self._until

    async def hold(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Waits for the lease, runs `work` while it is ours, and cancels it when it is lost; until cancelled.

        Raises:
            Refused: we have no rights to the lease.
            Exception: of `work`.
        """
        try:
            while True:
                await self._win()
                tell(logging.INFO, "leads", lease=self._name, identity=self._identity)
                await self._lead(work)
                tell(logging.WARNING, "lost the lease; stands by", lease=self._name)
        finally:
            await self._release()

    async def _win(self) -> None:
        told = ""
        while True:
            try:
                await self._look()
                if not (wait := self._pause()):
                    await self._take()
                    return
                if self._sight is not None and told != self._sight.holder:
                    told = self._sight.holder
                    tell(logging.INFO, "stands by", lease=self._name, holder=told)
            except (Conflict, AlreadyExists):
                wait = QUICK_SECONDS  # another operator was quicker
            except (Unreachable, NotFound) as error:  # NotFound: of the namespace
                tell(logging.WARNING, "cannot see the lease", lease=self._name, error=str(error))
                wait = LOOK_SECONDS
            await asyncio.sleep(wait + random.uniform(0.0, 0.1 * LOOK_SECONDS))

    async def _lead(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Returns when the lease is lost and the work has stopped."""
        try:
            await until_first(work(), self._renew())
        finally:
            self._until = float("-inf")

    async def _renew(self) -> None:
        """Returns when another operator has the lease, or it could not be renewed in time."""
        wait = 0.0
        while (left := self._until - self._clock()) > 0:
            await asyncio.sleep(min(wait or RENEW_SHARE * self._seconds * random.uniform(0.9, 1.1), left))
            try:
                async with asyncio.timeout(max(self._until - self._clock(), 0.0)):
                    try:
                        await self._take()
                        wait = 0.0
                        continue
                    except (Conflict, AlreadyExists, NotFound):
                        await self._look()
            except (TimeoutError, Unreachable) as error:
                tell(logging.WARNING, "cannot renew the lease", lease=self._name, error=str(error))
            if self._pause():
                self._until = float("-inf")  # the work must not write while it ends
                return
            wait = QUICK_SECONDS

    def _pause(self) -> float:
        return pause(self._sight, self._identity, self._clock())

    async def _look(self) -> None:
        try:
            body = await self._client.get("Lease", self._namespace, self._name)
        except NotFound:
            self._body = self._sight = None
            return
        if self._body is None or self._sight is None or body["spec"] != self._body["spec"]:
            spec = body["spec"]
            seconds = min(spec.get("leaseDurationSeconds") or self._seconds, LONGEST_SECONDS)
            self._sight = Sight(spec.get("holderIdentity") or "", seconds, self._clock())
        self._body = body

    async def _take(self) -> None:
        """Acquires or renews, only over the version that was seen."""
        sent = self._clock()
        moment = _now()
        old: Object = {} if self._body is None else self._body["spec"]
        spec = {
            **old,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._seconds,
            "renewTime": moment,
        }
        if old.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": moment, "leaseTransitions": old.get("leaseTransitions", 0) + bool(old)}
        if self._body is None:
            metadata = {"name": self._name, "namespace": self._namespace, "labels": dict(self._labels)}
            body = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
            self._body = await self._client.create(body)
        else:
            self._body = await self._client.replace({**self._body, "spec": spec})
        self._sight = Sight(self._identity, self._seconds, sent)
        self._until = sent + DEADLINE_SHARE * self._seconds

    async def _release(self) -> None:
        if self._sight is None or self._sight.holder != self._identity:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._look()  # a renewal that was broken off may have arrived
                body = self._body
                if body is not None and body["spec"].get("holderIdentity") == self._identity:
                    spec = {**body["spec"], "holderIdentity": "", "renewTime": _now()}
                    await self._client.replace({**body, "spec": spec})
                    tell(logging.INFO, "gave the lease back", lease=self._name)
        except (TimeoutError, Unreachable, ApiError) as error:
            tell(logging.WARNING, "the lease was not given back", lease=self._name, error=str(error))


def _now() -> str:
    moment = datetime.datetime.now(datetime.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
