"""What the watches of one cluster share: what is watched, and the way from kopf's thread to the main loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from atoll_operator.kube.cache import Key, Object, key_of
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.logs import tell

BATCH = 500
"""Events that are handled in one turn of the main loop."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A kind to watch, in the cluster or in one namespace."""

    kind: str
    selector: str = ""
    """Of labels, evaluated by the API server."""
    metadata: bool = False
    """Only the metadata of the objects is asked for."""
    cluster_scoped: bool = False
    namespace: str = ""


class Sink(Protocol):
    """Gets all events, in the main loop. It must not change the bodies: kopf still reads them in its thread."""

    def event(self, kind: str, deleted: bool, body: Object) -> None:
        """The object has this state, or was deleted in this state."""

    def listed(self, kind: str, namespace: str, present: Collection[Key], version: int) -> None:
        """A list of a namespace, or of the cluster, had these objects at this resource version."""


class Feed:
    """Passes on what kopf and the resync see. All methods but `post` belong to the main loop.

    Args:
        client: says where the kinds are and how to log in.
        namespaces: empty for the whole cluster.
    """

    def __init__(
        self, client: ApiClient, watches: Iterable[Watch], namespaces: Collection[str], sink: Sink
    ) -> None:
        self.client, self.namespaces, self._sink = client, namespaces, sink
        self.watches = {
            client.resources[watch.kind].path(namespace): replace(watch, namespace=namespace)
            for watch in watches
            for namespace in ([""] if watch.cluster_scoped else namespaces or [""])
        }
        """By path."""
        self.filled = asyncio.Event()
        """Set when every collection has been listed once."""
        self._main = asyncio.get_running_loop()
        self._buffer: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._draining = False
        self._listed: set[Watch] = set()
        self._problems: dict[str, tuple[str, bool]] = {}
        """By path: the message, and whether the API server refuses."""

    @property
    def refusal(self) -> str:
        """The watches that the API server refuses, in its words; empty where it refuses none."""
        return "; ".join(f"{path}: {text}" for path, (text, refused) in self._problems.items() if refused)

    def event(self, kind: str, deleted: bool, body: Object) -> None:
        """Skips an object that cannot be read, because anybody may create one."""
        try:
            self._sink.event(kind, deleted, body)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            metadata = body.get("metadata", {})
            name = f"{kind} {metadata.get('namespace', '')}/{metadata.get('name', '')}"
            tell(logging.ERROR, f"cannot be read: {type(error).__name__}: {error}", object=name)

    def listed(self, watch: Watch, bodies: Iterable[Object], version: int) -> None:
        """After the events of a list: what it did not have was deleted."""
        present = {key_of(watch.kind, body) for body in bodies}
        self._sink.listed(watch.kind, watch.namespace, present, version)
        self._listed.add(watch)
        if len(self._listed) == len(self.watches):
            self.filled.set()

    def outcome(self, path: str, problem: str = "", refused: bool = False) -> None:
        """Logs each problem of a path once; empty: the request succeeded."""
        if not problem:
            self._problems.pop(path, None)
        elif self._problems.get(path) != (problem, refused):
            self._problems[path] = problem, refused
            tell(logging.WARNING, "a watch is down and will be tried again", path=path, error=problem)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls the function in the main loop, from kopf's thread; calls keep their order."""
        self._buffer.append((function, arguments))
        if not self._draining:
            self._draining = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._main.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = False
        for _ in range(min(BATCH, len(self._buffer))):
            function, arguments = self._buffer.popleft()
            function(*arguments)
        if self._buffer:
            self._draining = True
            self._main.call_soon(self._drain)
