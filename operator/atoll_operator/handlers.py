"""The only file that knows kopf: watches feed the store, and what changed becomes keys in the queue.

The index functions return nothing; they are there because kopf runs no event handler before every index has seen its
first list, and so no key is worked on before the store is complete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from atoll_operator.api.group import GROUP, LABEL_MANAGER, MANAGER, VERSION
from atoll_operator.settings import Settings
from atoll_operator.store import Key, Kind, Store, key_of, parent_key

WATCHED: tuple[tuple[Kind, str, str, str, bool], ...] = (
    ("TrainingRun", GROUP, VERSION, "trainingruns", False),
    ("LearnerUnit", GROUP, VERSION, "learnerunits", False),
    ("Pod", "", "v1", "pods", True),
    ("StatefulSet", "apps", "v1", "statefulsets", True),
)
"""Kind, group, version, plural, and whether only what bears our label is watched."""


async def watch(
    settings: Settings,
    store: Store,
    add: Callable[[Key], None],
    ready: asyncio.Event,
    stop: Callable[[], Awaitable[None]],
    nodes: bool = False,
) -> None:
    """Runs until a signal, or until a watch dies for good; `stop` ends the other tasks of the loop before kopf does.

    Args:
        nodes: whether to watch nodes too, which takes a right of the whole cluster.

    Raises:
        Exception: kopf's, when it cannot go on; the process has to end then.
    """
    registry = kopf.OperatorRegistry()
    _register_setup(registry, stop)
    for kind, group, version, plural, labelled in WATCHED:
        _register(registry, store, add, kind, (group, version, plural), labelled)
    if nodes:
        _register_nodes(registry, store, add)
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
        settings.watching.label_selectors["", "v1", "pods"] = f"{LABEL_MANAGER}={MANAGER}"
        settings.watching.label_selectors["apps", "v1", "statefulsets"] = f"{LABEL_MANAGER}={MANAGER}"
        settings.scanning.disabled = True
        settings.peering.standalone = True

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await stop()  # kopf waits 5 s for tasks that it takes for hung

    @kopf.on.login(registry=registry)
    def login(**keywords: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**keywords) or kopf.login_via_client(**keywords)


def _register(
    registry: kopf.OperatorRegistry,
    store: Store,
    add: Callable[[Key], None],
    kind: Kind,
    resource: tuple[str, str, str],
    labelled: bool,
) -> None:
    labels = {LABEL_MANAGER: MANAGER} if labelled else None

    @kopf.index(*resource, registry=registry, labels=labels, id=f"known-{resource[2]}")
    async def learn(body: kopf.Body, **_: Any) -> None:
        store.put(kind, dict(body))

    @kopf.on.event(*resource, registry=registry, labels=labels, id=f"changed-{resource[2]}")
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        body: dict[str, Any] = dict(event["object"])
        if event["type"] == "DELETED":
            store.drop(kind, body)
        else:
            store.put(kind, body)
        if kind in ("TrainingRun", "LearnerUnit"):
            add(key_of(kind, body))
        parent = parent_key(kind, body)
        if parent is not None:
            add(parent)


def _register_nodes(registry: kopf.OperatorRegistry, store: Store, add: Callable[[Key], None]) -> None:
    """Of a node only a view is kept: it is some 20 KB on GKE, and its status is written every five minutes."""

    @kopf.index("", "v1", "nodes", registry=registry, id="known-nodes")
    async def learn(body: kopf.Body, **_: Any) -> None:
        store.meet_node(
            dict(body), time.time()
        )  # kopf indexes before each event, which must find what is news

    @kopf.on.event("", "v1", "nodes", registry=registry, id="changed-nodes")
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        body: dict[str, Any] = dict(event["object"])
        deleted = event["type"] == "DELETED"
        for key in store.drop_node(body) if deleted else store.put_node(body, time.time()):
            add(key)
