"""What the supervisor of the watches lists, without kopf: contents once, metadata after each time kopf has listed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, cast

from leaping import leap

from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import Refused
from atoll_operator.kube.keys import Object
from atoll_operator.kube.middleware import Watch
from atoll_operator.kube.transport import Resource
from atoll_operator.kube.watches import ClusterWatches

PODS = "/api/v1/namespaces/n/pods"


class World:
    """An API server with pods alone, and what the supervisor reports of it."""

    def __init__(self) -> None:
        self.resources = {"Pod": Resource("", "v1", "pods")}
        self.pods: list[str] = []
        self.refusals: list[Refused] = []
        self.asked_for_metadata: list[bool] = []
        self.seen: list[str] = []
        self.lists: list[tuple[set[tuple[str, str]], int]] = []
        self.watches = ClusterWatches(cast(ApiClient, self), [Watch("Pod")], ["n"], self, 300)

    async def pages(
        self, kind: str, namespace: str, selector: str, metadata: bool
    ) -> AsyncIterator[tuple[list[Object], int]]:
        self.asked_for_metadata.append(metadata)
        if self.refusals:
            raise self.refusals.pop()
        for name in self.pods:
            yield [{"metadata": {"name": name, "namespace": namespace}}], 7
        yield [], 7

    def event(self, kind: str, deleted: bool, body: Object) -> None:
        if body["metadata"]["name"] == "unreadable":
            raise KeyError("spec")
        self.seen.append(body["metadata"]["name"])

    def listed(self, kind: str, namespace: str, names: Collection[tuple[str, str]], version: int) -> None:
        self.lists.append((set(names), version))

    async def open(self) -> None:
        self.watches.opened(PODS)
        await asyncio.sleep(10)


def test_contents_are_listed_once_and_later_lists_only_tell_what_is_there() -> None:
    async def work() -> None:
        world = World()
        world.pods = ["a", "b"]
        await world.open()
        assert world.watches.filled.is_set()
        world.pods = ["b"]
        await world.open()
        assert world.seen == ["a", "b"]
        assert world.lists == [({("n", "a"), ("n", "b")}, 7), ({("n", "b")}, 7)]
        assert world.asked_for_metadata == [False, True]

    leap(work())


def test_a_list_that_is_refused_is_tried_again_and_shown_meanwhile() -> None:
    async def work() -> None:
        world = World()
        world.refusals = [Refused(403, "Forbidden", "pods is forbidden")] * 2
        world.watches.opened(PODS)
        await asyncio.sleep(0.01)
        assert world.watches.refusal == f"{PODS}: pods is forbidden"
        assert not world.watches.filled.is_set()
        await asyncio.sleep(10)
        assert world.watches.filled.is_set() and len(world.asked_for_metadata) == 3
        assert world.watches.refusal == ""

    leap(work())


def test_an_object_that_cannot_be_read_is_skipped(caplog: Any) -> None:
    async def work() -> None:
        world = World()
        world.pods = ["unreadable", "b"]
        await world.open()
        assert world.seen == ["b"] and world.watches.filled.is_set()

    leap(work())
    assert "cannot be read: KeyError" in caplog.text
