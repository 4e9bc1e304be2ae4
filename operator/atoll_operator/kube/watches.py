"""Supervises the watches of one cluster: starts kopf again whenever it ends, and finds what was deleted meanwhile. kopf
ends after a stream ERROR other than 410, and does not report an object that was deleted while it was not watching.
Therefore each of its lists is compared with what is known, and so is a list of metadata at each resync."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import aiohttp
import msgspec
import yarl

from atoll_operator.kube.cache import Key, Object, key_of, version_of
from atoll_operator.kube.client import METADATA_LIST, decode
from atoll_operator.kube.errors import ApiError, Restored, Unreachable
from atoll_operator.kube.events import BACK_OFF, WATCH_SECONDS, Feed, KopfThread, News, Watch
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import back_off, until_first

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
SILENT_SECONDS = WATCH_SECONDS + 20.0
"""kopf is started again when it has not asked for a collection for this long: its loop hangs, a connection is dead, or
the kind was not served yet when it started."""
PAUSE_SECONDS = 10.0
"""Least time between two resyncs, because watches may fail and come back again and again."""
STEADY_SECONDS = 30.0
"""After a run of at least this length the back-off before the next start of kopf is the first one again."""


async def watch(feed: Feed, resync_seconds: float) -> None:
    """Watches until cancelled, and lists each collection again after `resync_seconds` or an outage. Raises Restored."""
    await until_first(_run_kopf(feed), _resync(feed, resync_seconds))


async def _run_kopf(feed: Feed) -> None:
    failures = 0
    while True:
        session, started = KopfSession(feed), time.monotonic()
        kopf = KopfThread(feed, session.open, session.news)
        try:
            reason = await _end_of(kopf, session)
        finally:
            kopf.stop()
        failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
        wait = back_off(failures, *BACK_OFF)
        log(logging.WARNING, "the watches ended; starts them again", error=reason, seconds=round(wait, 2))
        await asyncio.sleep(wait)


async def _end_of(kopf: KopfThread, session: KopfSession) -> str:
    """Waits until kopf has ended, or needs to be started again; returns the reason."""
    while not (await asyncio.wait([kopf.ended], timeout=1.0))[0]:
        since = time.monotonic() - SILENT_SECONDS
        if silent := [path for path, asked in session.asked.copy().items() if asked < since]:
            return f"has not asked for {', '.join(sorted(silent))} for {SILENT_SECONDS:g} s"
    return kopf.ended.result()


async def _resync(feed: Feed, seconds: float) -> None:
    wait = seconds
    while True:
        with contextlib.suppress(TimeoutError):
            # Not `wait_for`, which may lose a cancellation in Python 3.11.
            async with asyncio.timeout(wait * random.uniform(0.9, 1.1)):
                await feed.back.wait()
        if feed.back.is_set():
            feed.back.clear()
            feed.when_listed(())
        wait = seconds
        for path, each in feed.watches.items():
            if each in feed.unlisted:  # its first list must have whole objects; the one below has names alone
                continue
            known = {key: feed.cache.version(key) for key in feed.cache.keys(each.kind, each.namespace)}
            try:
                bodies, version = await feed.client.list(each.kind, each.namespace, each.selector)
            except (ApiError, Unreachable) as error:
                log(logging.WARNING, "a collection could not be listed again", path=path, error=str(error))
                if isinstance(error, Unreachable):
                    wait = min(seconds, PAUSE_SECONDS)
            else:
                check_versions(each.kind, known, bodies, version)
                feed.listed(each, {key_of(each.kind, body) for body in bodies}, version)
        await asyncio.sleep(min(seconds, PAUSE_SECONDS) * random.uniform(0.9, 1.1))


def check_versions(kind: str, known: Mapping[Key, int], bodies: Iterable[Object], version: int) -> None:
    """Checks that a list, and each object in it, is at least as new as what was known before. Otherwise raises
    Restored."""
    older = [key for body in bodies if version_of(body["metadata"]) < known.get(key := key_of(kind, body), 0)]
    if older or version < max(known.values(), default=0):
        what = older[0] if older else f"the list of {kind}s"
        raise Restored(f"the API server went back to an earlier state: {what} is older than before")


class KopfSession:
    """The HTTP session of kopf. It logs in, asks for metadata alone where that is enough, and reports lists and
    problems. It keeps the bodies of events, and gives kopf one event for all that arrive at a time, because kopf takes
    half a millisecond for each. All but its constructor runs in kopf's thread."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.asked = dict.fromkeys(feed.watches, time.monotonic())
        """When each collection was asked for last, by path."""
        self.news: dict[str, News] = {}
        self._present: dict[str, set[Key]] = {}
        """By path, the objects in the pages of a list so far."""
        self._turn = asyncio.Lock()

    def open(self) -> aiohttp.ClientSession:
        class Response(aiohttp.ClientResponse):
            async def json(response, **_: Any) -> Any:
                return await self._read(response)

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._feed.client.credentials.context),
            middlewares=(self._send,),
            response_class=Response,
            headers={"Accept-Encoding": "identity"},  # compressing costs more than it saves
        )

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        path, watch = request.url.path, self._feed.watches.get(request.url.path)
        streams = "watch" in request.url.query
        if watch is not None and watch.metadata:
            request.headers["Accept"] = METADATA if streams else METADATA_LIST
        while True:
            if watch is not None:
                self.asked[path] = time.monotonic()
            request.headers.update(self._feed.client.credentials.headers())
            try:
                response = await handler(request)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._failed(path, "unreachable", f"{type(error).__name__}: {error}")
                raise
            if response.status < 400:
                self._feed.post(self._feed.outcome, path)
                if watch is not None and streams:
                    content = _Stream(response.content, partial(self._brief_events, watch))
                    response.content = content  # type: ignore[assignment]
                return response
            self._failed(path, str(response.status), decode(await response.read()).get("message", ""))
            if response.status != 401:
                return response
            await asyncio.sleep(back_off(2, *BACK_OFF))  # kopf would log in and try again at once

    def _failed(self, path: str, code: str, text: str) -> None:
        self._feed.client.count_error(code)
        self._feed.post(self._feed.outcome, path, text or code, code in ("401", "403"))

    def _brief_events(self, watch: Watch, lines: Iterable[bytes]) -> bytes:
        """What kopf gets for these lines: one event for all objects, or a bookmark if all states are known, as after
        the operator's own writes. If kopf drops it, because its stream ends, a later line or list has those states."""
        kept, version, kind = b"", "", "BOOKMARK"
        for line in lines:
            event = msgspec.json.decode(line)
            if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                kept += line + b"\n"
                continue
            body, deleted = event["object"], event["type"] == "DELETED"
            version = body["metadata"]["resourceVersion"]
            if deleted or version_of(body["metadata"]) > self._feed.cache.version(key_of(watch.kind, body)):
                self.news[body["metadata"]["uid"]] = watch.kind, deleted, body
                kind = "MODIFIED"
        if version:
            metadata = {"uid": watch.kind, "name": watch.kind, "resourceVersion": version}
            kept = msgspec.json.encode({"type": kind, "object": {"metadata": metadata}}) + b"\n" + kept
        return kept

    async def _read(self, response: aiohttp.ClientResponse) -> Any:
        """The content of a response. Of all lists one page at a time is in memory, until the main loop has taken it."""
        if (watch := self._feed.watches.get(response.url.path)) is None:
            return decode(await response.read())
        async with self._turn:
            answer = decode(await response.read())
            if "items" in answer:
                self._report(watch, response.url, answer)
                await self._feed.taken()
            return answer

    def _report(self, watch: Watch, url: yarl.URL, answer: Object) -> None:
        """Reports a page of a list and empties it, because kopf does not tell its handlers where a list ends, and would
        begin a task for each object at once."""
        feed, bodies = self._feed, answer["items"] or []  # an empty list of metadata is null
        answer["items"] = []
        for body in bodies:
            body.setdefault("kind", answer["kind"].removesuffix("List"))
            body.setdefault("apiVersion", answer["apiVersion"])
            feed.post(feed.event, watch.kind, False, body)
        present = self._present.setdefault(url.path, set())
        if "continue" not in url.query:
            present.clear()
        present.update(key_of(watch.kind, body) for body in bodies)
        if not answer["metadata"].get("continue"):
            feed.post(feed.listed, watch, self._present.pop(url.path), version_of(answer["metadata"]))


class _Stream:
    """The body of a watch's response with its lines replaced. kopf reads it by `iter_chunked`."""

    def __init__(self, content: aiohttp.StreamReader, replace: Callable[[Iterable[bytes]], bytes]) -> None:
        self._content, self._replace = content, replace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            yield self._replace(lines)
