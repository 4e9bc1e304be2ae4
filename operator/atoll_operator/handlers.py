"""The only file that knows kopf: it tells of TrainingRuns, which people write, and of signals.

All that changes by the thousand comes by watches of our own (`watches.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from atoll_operator.api.group import GROUP, VERSION
from atoll_operator.keys import Key, key_of
from atoll_operator.news import News
from atoll_operator.settings import Settings
from atoll_operator.store import Store


async def watch(
    settings: Settings,
    store: Store,
    add: Callable[[Key], None],
    ready: asyncio.Event,
    stop: Callable[[], Awaitable[None]],
) -> None:
    """Runs until a signal, or until a watch dies for good; `stop` ends the other tasks of the loop before kopf does.

    Raises:
        Exception: kopf's, when it cannot go on; the process has to end then.
    """
    registry = kopf.OperatorRegistry()
    _register_setup(registry, stop)
    _register_runs(registry, store, add)
    await kopf.operator(
        registry=registry,
        # kopf would look the user up by name, and the image's user 65532 has none; only peering reads it.
        identity="atoll",  # type: ignore[arg-type]
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        ready_flag=ready,
    )


class NoDifference(kopf.DiffBaseStorage):
    """We compare states ourselves: without this kopf copies every body of every event to compare it."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of a body is looked at."""
        return kopf.BodyEssence({})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing was kept."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is kept."""


def _register_setup(registry: kopf.OperatorRegistry, stop: Callable[[], Awaitable[None]]) -> None:
    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = NoDifference()
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.error_backoffs = (0.5, 1, 2, 4, 8, 16, 16, 16)
        settings.watching.server_timeout = 240
        settings.watching.chunk_size = 500
        settings.scanning.disabled = True
        settings.peering.standalone = True

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await stop()  # kopf waits 5 s for tasks that it takes for hung

    @kopf.on.login(registry=registry)
    def login(**keywords: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**keywords) or kopf.login_via_client(**keywords)


def _register_runs(registry: kopf.OperatorRegistry, store: Store, add: Callable[[Key], None]) -> None:
    @kopf.on.event(GROUP, VERSION, "trainingruns", registry=registry)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        body: dict[str, Any] = dict(event["object"])
        if event["type"] == "DELETED":
            store.drop("TrainingRun", body)
        elif store.put("TrainingRun", body) is News.NONE:
            return
        add(key_of("TrainingRun", body))
