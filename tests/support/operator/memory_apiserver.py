"""An API server in memory for worlds with simulated time. It has what the operator's client uses."""

from __future__ import annotations

import asyncio
import marshal
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll_operator.cluster import RESOURCES
from atoll_operator.kube.cache import Key, key_of
from atoll_operator.kube.client import APPLY, MERGE, STRATEGIC
from atoll_operator.kube.errors import of_status
from atoll_operator.plan.conditions import format_time

Object = dict[str, Any]
When = Literal["before", "after"]
Told = Callable[[str, Object], None]
"""Gets ADDED, MODIFIED or DELETED, and the object."""
KINDS = {resource.path(): kind for kind, resource in RESOURCES.items()}


def copied(body: Object) -> Object:
    """A deep copy of JSON. `deepcopy` took a third of a story's time."""
    return dict(marshal.loads(marshal.dumps(body)))


@dataclass(slots=True)
class Weather:
    """Delays and losses of requests and watches. Probabilities are per request; seconds are upper bounds."""

    request_seconds: float = 0.02
    watch_seconds: float = 0.05
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    """Probability that a write is done but its answer is lost."""


@dataclass(slots=True)
class Fault:
    """The death of the operator at its n-th write from now on. Writes are numbered from 1; with 0 they are only
    counted."""

    at: int
    when: When
    """`before`: the write never arrives. `after`: it is done and never answered."""
    kill: Callable[[], None]
    seen: int = 0
    write: str = ""
    """The method and path at which the operator died; empty before."""

    def strikes(self, method: str, path: str) -> bool:
        """Count a write. Return whether the operator dies at it."""
        if self.write:
            return False
        self.seen += 1
        if self.seen == self.at:
            self.write = f"{method} {path}"
        return bool(self.write)


@dataclass(slots=True)
class Server:
    """All objects and their watchers."""

    random: random.Random
    weather: Weather = field(default_factory=Weather)
    objects: dict[Key, Object] = field(default_factory=dict)
    watchers: dict[str, asyncio.Queue[tuple[str, Object]]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Kinds for which a quota refuses new objects of the operator."""
    lacks: frozenset[str] = frozenset()
    """Fields of a status that are missing in its CRD."""
    fault: Fault | None = None
    version: int = 0
    uids: int = 0

    def watch(self, kind: str, told: Told) -> Coroutine[None, None, None]:
        """Reports changes from this call on, in their order, with delays. A kind has one watcher, the newest."""
        queue = self.watchers[kind] = asyncio.Queue()
        return self._deliver(queue, told)

    async def _deliver(self, queue: asyncio.Queue[tuple[str, Object]], told: Told) -> None:
        while True:
            event, body = await queue.get()
            await asyncio.sleep(self.random.uniform(0, self.weather.watch_seconds))
            told(event, body)

    def every(self, kind: str) -> Iterator[Object]:
        """The objects themselves, not copies. Do not change them."""
        return (body for key, body in list(self.objects.items()) if key.kind == kind)

    def get(self, kind: str, name: str, namespace: str = "ns") -> Object:
        return copied(self._found(Key(kind, "" if kind == "Node" else namespace, name)))  # type: ignore[arg-type]

    def create(self, body: Object) -> Object:
        key = key_of(body["kind"], body)
        if key in self.objects:
            raise of_status(409, "AlreadyExists", f"there is a {key}")
        body = copied(body)
        self.uids += 1
        body["metadata"] |= {
            "uid": f"{key.name}.{self.uids}", "generation": 1, "creationTimestamp": format_time(time.time()),
        }  # fmt: skip
        if key.kind == "Pod":
            body["status"] = {"phase": "Pending"}
        return self._put(body, "ADDED")

    def change(self, body: Object) -> Object:
        """Stores another state of an existing object, unless it is the same."""
        known = self._found(key_of(body["kind"], body))
        if body == known:
            return copied(known)
        if body.get("spec") != known.get("spec") or body.get("data") != known.get("data"):
            body["metadata"]["generation"] = known["metadata"]["generation"] + 1
        return self._put(body, "DELETED" if _is_over(body) else "MODIFIED")

    def delete(self, kind: str, name: str, grace: int | None = None, uid: str = "") -> Object:
        body = self.get(kind, name)
        metadata = body["metadata"]
        if uid and metadata["uid"] != uid:
            raise of_status(409, "Conflict", "the uid in the precondition is another")
        if kind == "Pod":
            status, spec = body["status"], body["spec"]
            if grace is None:
                grace = spec.get("terminationGracePeriodSeconds", 30)
            if not spec.get("nodeName") or status["phase"] in ("Succeeded", "Failed"):
                grace = 0
            left = metadata.get("deletionGracePeriodSeconds")
            if left is not None and left <= grace:
                return body
            metadata["deletionGracePeriodSeconds"] = grace
        metadata["deletionTimestamp"] = format_time(time.time() + (grace or 0))[:19] + "Z"
        return self.change(body)

    def collect_garbage(self) -> None:
        """Deletes objects when their controller is gone."""
        uids = {body["metadata"]["uid"] for body in self.objects.values()}
        for key, body in list(self.objects.items()):
            owners = body["metadata"].get("ownerReferences", [])
            if owners and "deletionTimestamp" not in body["metadata"] and owners[0]["uid"] not in uids:
                self.delete(key.kind, key.name)

    def answer(self, method: str, path: str, body: Object, parameters: Any, content_type: str) -> Object:
        head, _, tail = path.partition("/namespaces/")
        namespace, _, plural = tail.partition("/")
        plural, *rest = plural.split("/")
        kind = KINDS[f"{head}/{plural}" if tail else head]
        if not rest and method == "POST":
            if kind in self.refused:
                raise of_status(403, "Forbidden", "exceeded quota")
            return self.create(body)
        if not rest:
            return self._list(kind, namespace, parameters or {})
        name = rest[0]
        if method == "GET":
            return self.get(kind, name, namespace)
        if method == "DELETE":
            uid = body.get("preconditions", {}).get("uid", "")
            return self.delete(kind, name, body.get("gracePeriodSeconds"), uid)
        if method == "PUT":
            return self._replace(kind, name, body, "status" if rest[1:] else "")
        if content_type == APPLY:
            return self._apply(body)
        return self._change_metadata(kind, name, body["metadata"], content_type)

    def _replace(self, kind: str, name: str, sent: Object, part: str) -> Object:
        """Replaces the whole object, or a part of it. Refused if it has been changed in between."""
        known = self.get(kind, name)
        for field_ in ("resourceVersion", "uid"):
            if known["metadata"][field_] != sent["metadata"][field_]:
                raise of_status(409, "Conflict", "the object has been modified")
        if not part:
            return self.change(copied(sent))
        stored = {name: value for name, value in copied(sent[part]).items() if name not in self.lacks}
        return self.change({**known, part: stored})

    def _apply(self, sent: Object) -> Object:
        key = key_of(sent["kind"], sent)
        if key not in self.objects:
            return self.create(sent)
        known = self.get(key.kind, key.name)
        metadata = known["metadata"] | {k: v for k, v in sent["metadata"].items() if v is not None}
        every = (*known["metadata"].get("ownerReferences", ()), *sent["metadata"].get("ownerReferences", ()))
        owners = {each["uid"]: each for each in every}
        if sum(each.get("controller", False) for each in owners.values()) > 1:
            problem = "metadata.ownerReferences: Only one reference can have Controller set to true"
            raise of_status(422, "Invalid", problem)
        metadata["ownerReferences"] = list(owners.values())
        return self.change({**known, **copied(sent), "metadata": metadata})

    def _change_metadata(self, kind: str, name: str, change: Object, content_type: str) -> Object:
        known = self.get(kind, name)
        metadata = known["metadata"]
        if change["uid"] != metadata["uid"]:
            raise of_status(422, "Invalid", "metadata.uid: field is immutable")
        if content_type == MERGE:
            for name, part in change.items():  # a merge patch replaces lists
                metadata[name] = metadata.get(name, {}) | part if isinstance(part, dict) else part
        else:
            assert content_type == STRATEGIC
            gone = change["$deleteFromPrimitiveList/finalizers"]
            metadata["finalizers"] = [name for name in metadata.get("finalizers", []) if name not in gone]
        return self.change(known)

    def _list(self, kind: str, namespace: str, parameters: dict[str, str]) -> Object:
        found = [
            copied(body)
            for key, body in self.objects.items()
            if key.kind == kind and namespace in ("", key.namespace) and _matches(body, parameters)
        ]
        return {"items": found, "metadata": {"resourceVersion": str(self.version)}}

    def _found(self, key: Key) -> Object:
        if key not in self.objects:
            raise of_status(404, "NotFound", f"there is no {key}")
        return self.objects[key]

    def _put(self, body: Object, event: str) -> Object:
        self.objects[key_of(body["kind"], body)] = body
        if event == "DELETED":
            del self.objects[key_of(body["kind"], body)]
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        if watcher := self.watchers.get(body["kind"]):
            watcher.put_nowait((event, copied(body)))
        return copied(body)


def _is_over(body: Object) -> bool:
    metadata = body["metadata"]
    held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
    return "deletionTimestamp" in metadata and not held


def _matches(body: Object, parameters: dict[str, str]) -> bool:
    """Whether the object has the label by which the operator selects."""
    name, _, value = parameters.get("labelSelector", "").partition("=")
    return not name or bool(body["metadata"].get("labels", {}).get(name) == value)
