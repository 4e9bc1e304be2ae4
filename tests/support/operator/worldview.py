"""The content of the memory world in a form in which two worlds can be compared: without identities, times and figures.
Where the pods of a gang may run is left out too, because it depends on which of them had a node when the others were
created."""

from __future__ import annotations

import base64
import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from cryptography import x509

from atoll_operator.api.group import LABEL_HOLDS, NODE_POOL
from atoll_operator.certificates.authority import is_due
from atoll_operator.plan.conditions import FIGURES

Object = dict[str, Any]
METADATA = ("name", "labels", "annotations", "finalizers", "generation")
OF_A_MOMENT = FIGURES | {
    "chipSeconds", "completionTime", "healStartTime", "lastHealSeconds", "lastTransitionTime", "node",
    "quorumLostTime", "seconds", "stages", "startTime", "startedAt", "steps", "suspendTime", "suspendedSeconds", "time",
}  # fmt: skip
"""Fields of a status that differ between runs. `node` is that of a failure, which is unknown if the pod was removed
before the operator looked."""
Occasion = tuple[str, str, str]
"""Kind, name and reason of an Event."""


def essence(bodies: Iterable[Object]) -> dict[str, Object]:
    """The comparable part of all objects except Events, by kind and name."""
    found = {f"{body['kind']} {body['metadata']['name']}": body for body in bodies if body["kind"] != "Event"}
    text = msgspec.json.encode({name: _of(body, found) for name, body in found.items()}).decode()
    for name, body in found.items():
        text = text.replace(body["metadata"]["uid"], f"<uid of {name}>")
    return dict(msgspec.json.decode(text))


def occasions(events: Iterable[Object]) -> Counter[Occasion]:
    """How often each Event was recorded, counting repetitions."""
    told: Counter[Occasion] = Counter()
    for event in events:
        about = event["involvedObject"]
        told[about["kind"], about["name"], event["reason"]] += event.get("count", 1)
    return told


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            if key not in found:
                yield f"{path}/{key} is missing"
            elif key not in expected:
                yield f"{path}/{key} is too much"
            else:
                yield from differences(expected[key], found[key], f"{path}/{key}")
    elif expected != found:
        yield f"{path} is {json.dumps(found)}, not {json.dumps(expected)}"


def _of(body: Object, bodies: dict[str, Object]) -> Object:
    metadata = {key: body["metadata"][key] for key in METADATA if key in body["metadata"]}
    owners = [(owner["kind"], owner["uid"]) for owner in body["metadata"].get("ownerReferences", [])]
    status, going = body.get("status", {}), "deletionTimestamp" in body["metadata"]
    essence: Object = {"metadata": metadata, "owners": owners, "going": going}
    match body["kind"]:
        case "Secret":
            return essence | _secret(body, bodies)
        case "Pod":
            metadata["labels"] = {**metadata["labels"]}
            metadata["labels"].pop(LABEL_HOLDS, None)
            metadata.pop("generation")  # the scheduler's and Kueue's changes count too
            spec = {key: value for key, value in body["spec"].items() if key not in ("affinity", "nodeName")}
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), NODE_POOL: ""}
            restarts = [each["restartCount"] for each in status.get("containerStatuses", [])]
            return essence | {"spec": spec, "phase": status["phase"], "restarts": restarts}
        case "TrainingRun" | "LearnerUnit":
            return essence | {"spec": body["spec"], "status": _lasting(status)}
    return essence | {"spec": body.get("spec"), "data": body.get("data")}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in OF_A_MOMENT}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _secret(body: Object, bodies: dict[str, Object]) -> Object:
    """Which Secrets have the same authority, and whether certificates are due for renewal."""
    data, now = body["data"], datetime.datetime.now(datetime.UTC)
    pem = base64.b64decode(data.get("tls.crt") or data["ca.crt"])
    found = x509.load_pem_x509_certificates(pem)
    due = [is_due(one, now) for one in found]
    others = [each for each in bodies.values() if each["kind"] == "Secret"]
    same = [each["metadata"]["name"] for each in others if each["data"].get("ca.crt") == data.get("ca.crt")]
    return {"type": body["type"], "keys": sorted(data), "authority": sorted(same), "due": due}
