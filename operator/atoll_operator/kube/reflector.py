"""Keeps a sink in step with one collection of the API server: a list in pages, then a watch, for ever.

As client-go's reflector does it. A watch that ends is resumed at the last version that was told, by an event or by a
bookmark; when the API server does not know that version any more (410), all is listed anew, and what is not in the
list is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Protocol

import aiohttp
import msgspec

from atoll_operator.kube.client import METADATA_LIST, retry_after
from atoll_operator.kube.keys import Object
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.logs import tell

PAGE = 250
"""Objects of one answer: 2 MB of pods."""
PAGES = 4000
"""Of one list: a million objects."""
WATCH_SECONDS = 300.0
"""After this long, or up to twice as long, the API server ends a watch: not all at once after its own restart."""
SILENT_SECONDS = 90.0
"""Bookmarks come every minute; a connection that is silent for longer is dead."""
LINE_LIMIT = 8 * 2**20
"""Bytes of one event; etcd takes objects of 1.5 MB."""
BACK_OFF_SECONDS = 0.5
MAX_BACK_OFF_SECONDS = 10.0
"""A heal waits for the watch when the API server comes back."""
STEADY_SECONDS = 1.0
"""A watch that lasted so long was a good one, and is resumed at once."""
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
TIME_OUT = aiohttp.ClientTimeout(total=60, sock_connect=5)
STREAM_TIME_OUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENT_SECONDS)


Name = tuple[str, str]
"""Namespace, empty where there is none, and name."""


class Sink(Protocol):
    """Who wants to know."""

    def seen(self, body: Object) -> None:
        """The object is there, in this state."""

    def gone(self, body: Object) -> None:
        """It was deleted; its last state."""

    def listed(self, names: Collection[Name], version: int) -> None:
        """At this version there were these objects and no others."""


class _Event(msgspec.Struct):
    type: str
    object: Object


class _Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, wait: float = 0.0) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.wait = wait


class Reflector:
    """One collection. Its first list may take several tries; `filled` is set after it.

    Args:
        path: of the collection, such as `/api/v1/pods`.
        selector: of labels.
        contents: whether objects are wanted whole; else the API server sends their metadata alone.
    """

    def __init__(
        self,
        credentials: Credentials,
        count_error: Callable[[str], None],
        path: str,
        selector: str,
        sink: Sink,
        contents: bool = True,
    ) -> None:
        self._credentials = credentials
        self._count_error = count_error
        self._path = path
        self._selector = {"labelSelector": selector} if selector else {}
        self._sink = sink
        self._list_type, self._watch_type = (JSON, JSON) if contents else (METADATA_LIST, METADATA)
        self._version = ""
        """To watch from; empty: all has to be listed."""
        self._complaint = ""
        self._watching_since: float | None = None
        """By the loop's clock, when the API server accepted the watch of this try; None: it has not."""
        self.filled = asyncio.Event()
        self.refusal = ""
        """That we may not watch, in the words of the API server; empty while we may, or nobody answers."""

    async def run(self) -> None:
        """Until cancelled. No answer ends it: rights that are missing today may be given tomorrow."""
        loop = asyncio.get_running_loop()
        failures = 0
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            while True:
                self._watching_since, wait = None, 0.0
                try:
                    if not self._version:
                        await self._list(session)
                    await self._watch(session)
                except _Refusal as refusal:
                    wait = refusal.wait
                    self._refused(refusal)
                except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
                    self._count_error("unreachable")
                    self._complain(f"{type(error).__name__}: {error}")
                since = self._watching_since
                steady = since is not None and loop.time() - since >= STEADY_SECONDS
                failures = 0 if steady else failures + 1
                await asyncio.sleep(max(wait, _back_off(failures)))

    async def _list(self, session: aiohttp.ClientSession) -> None:
        names: set[Name] = set()
        token = ""
        for _ in range(PAGES):
            parameters = self._selector | {"limit": str(PAGE)} | ({"continue": token} if token else {})
            async with self._get(session, parameters, TIME_OUT, self._list_type) as response:
                await _check(response)
                answer = msgspec.json.decode(await response.read())
            for body in answer["items"] or ():  # an empty list of metadata alone is null
                self._tell(self._sink.seen, body)
                names.add((body["metadata"].get("namespace", ""), body["metadata"]["name"]))
            token = answer["metadata"].get("continue", "")
            if not token:
                break
        else:
            raise _Refusal(500, f"a list of more than {PAGES} pages of {PAGE}")
        version = str(answer["metadata"]["resourceVersion"])
        self._sink.listed(names, int(version))
        self._version = version
        self.filled.set()

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Until the API server ends it."""
        parameters = self._selector | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(WATCH_SECONDS * random.uniform(1, 2))),
        }
        async with self._get(session, parameters, STREAM_TIME_OUT, self._watch_type) as response:
            await _check(response)
            self._watching_since = asyncio.get_running_loop().time()
            self._complaint = self.refusal = ""
            async for line in _lines(response.content):
                event = _decode(line)
                if event.type == "ERROR":
                    status = event.object
                    raise _Refusal(int(status.get("code", 500)), str(status.get("message", "")))
                if event.type == "DELETED":
                    self._tell(self._sink.gone, event.object)
                elif event.type in ("ADDED", "MODIFIED"):
                    self._tell(self._sink.seen, event.object)
                self._version = event.object["metadata"]["resourceVersion"]

    def _tell(self, sink: Callable[[Object], None], body: Object) -> None:
        """An object that nobody can read is left out: anybody may make one, and the others must be seen."""
        try:
            sink(body)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            metadata = body["metadata"]
            name = f"{self._path} {metadata.get('namespace', '')}/{metadata['name']}"
            tell(logging.ERROR, f"cannot be read: {type(error).__name__}: {error}", object=name)

    def _get(
        self,
        session: aiohttp.ClientSession,
        parameters: Mapping[str, str],
        time_out: aiohttp.ClientTimeout,
        accept: str,
    ) -> Any:
        return session.get(
            self._credentials.server + self._path,
            params=parameters,
            timeout=time_out,
            ssl=self._credentials.context,
            # Compressing costs the API server more than the network saves.
            headers={
                **self._credentials.headers(),
                "Accept": accept,
                "Accept-Encoding": "identity",
            },
        )

    def _refused(self, refusal: _Refusal) -> None:
        self._count_error(str(refusal.status))
        if refusal.status == 410:
            self._version = ""
            return
        if refusal.status == 401:
            self._credentials.expire()
        self.refusal = f"{self._path}: {refusal}" if refusal.status in (401, 403) else ""
        self._complain(str(refusal))

    def _complain(self, problem: str) -> None:
        """Once for each kind of trouble."""
        if problem != self._complaint:
            tell(logging.WARNING, "a watch is down and will be tried again", path=self._path, error=problem)
        self._complaint = problem


_decode = msgspec.json.Decoder(_Event).decode


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = await response.text()
    try:
        message = str(msgspec.json.decode(text)["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = text[:500]
    raise _Refusal(response.status, message, retry_after(response.headers, MAX_BACK_OFF_SECONDS))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines; what is left when the stream breaks off is no event."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > LINE_LIMIT:
            raise _Refusal(500, f"an event of more than {LINE_LIMIT} bytes")


def _back_off(failures: int) -> float:
    if not failures:
        return 0.0
    return min(BACK_OFF_SECONDS * 2.0 ** min(failures - 1, 8), MAX_BACK_OFF_SECONDS) * random.uniform(
        0.5, 1.0
    )
