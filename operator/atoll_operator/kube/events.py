"""The only file that knows kopf: it starts the work, hears the signals, and ends the work in order.

All that is watched comes by watches of our own (`watches.py`): one of kopf's ends the process when the API server is
ill for a minute, or puts any error but 410 into the stream (kopf 1.45).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

import kopf

BACK_OFF_SECONDS = 0.5
MAX_BACK_OFF_SECONDS = 16.0


async def attend(
    namespaces: Collection[str], ready: asyncio.Event, stop: Callable[[], Awaitable[None]]
) -> None:
    """Sets `ready`, runs until a signal, and calls `stop` then: kopf ends tasks that were made after its start.

    Raises:
        Exception: kopf's, when it cannot go on; the process has to end then.
    """
    registry = kopf.OperatorRegistry()
    _register(registry, stop)
    await kopf.operator(
        registry=registry,
        # kopf would look the user up by name, and the image's user 65532 has none; only peering reads it.
        identity="atoll",  # type: ignore[arg-type]
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
    )


class BackOffs:
    """Seconds between the tries of a request, without end: kopf asks what the API server serves, and is to wait."""

    def __iter__(self) -> Iterator[float]:
        seconds = BACK_OFF_SECONDS
        while True:
            yield seconds * random.uniform(0.5, 1.0)
            seconds = min(2 * seconds, MAX_BACK_OFF_SECONDS)


def _register(registry: kopf.OperatorRegistry, stop: Callable[[], Awaitable[None]]) -> None:
    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.error_backoffs = BackOffs()
        settings.scanning.disabled = True
        settings.peering.standalone = True

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await stop()  # kopf waits 5 s for tasks that it takes for hung

    @kopf.on.login(registry=registry)
    def login(**keywords: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**keywords) or kopf.login_via_client(**keywords)
