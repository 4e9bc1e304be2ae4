"""What a namespace holds, in a form in which two namespaces can be compared: no identities, no times, no figures.

Where the pods of a gang may run depends on which of them had a node when the others were made, so it is left out.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cryptography import x509

from atoll_operator.api.group import LABEL_HOLDS, LABEL_POD_GROUP, NODE_POOL
from atoll_operator.certificates.rotation import Life
from atoll_operator.plan.conditions import FIGURES

Object = dict[str, Any]
OF_EVERY_NAMESPACE = "kube-root-ca.crt"
METADATA = ("name", "labels", "annotations", "finalizers", "generation")
OF_A_MOMENT = FIGURES | {
    "chipSeconds", "completionTime", "healStartTime", "lastHealSeconds", "lastTransitionTime", "node",
    "quorumLostTime", "seconds", "stages", "startTime", "startedAt", "steps", "suspendTime", "suspendedSeconds", "time",
}  # fmt: skip
"""Fields of a status that no two runs have alike. `node` is that of a failure: a pod that went while nobody looked took
the name of its node with it."""
Occasion = tuple[str, str, str]
"""Kind, name and reason of an Event."""


def essence(namespace: str, bodies: Mapping[str, list[Object]]) -> dict[str, dict[str, Object]]:
    """Kind to name to what matters, of objects by kind."""
    bodies = {kind: found for kind, found in bodies.items() if kind != "Event"}
    identities = {
        body["metadata"]["uid"]: f"<uid of {kind} {body['metadata']['name']}>"
        for kind, found in bodies.items()
        for body in found
    }
    return {
        kind: {
            body["metadata"]["name"]: _nameless(_essence(kind, body, bodies), namespace, identities)
            for body in found
            if body["metadata"]["name"] != OF_EVERY_NAMESPACE
        }
        for kind, found in bodies.items()
    }


def occasions(events: Iterable[Object]) -> Counter[Occasion]:
    """How often each was told; an Event that was told again counts again."""
    told: Counter[Occasion] = Counter()
    for event in events:
        about = event["involvedObject"]
        told[about["kind"], about["name"], event["reason"]] += event.get("count", 1)
    return told


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """In words, one for each place."""
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


def _nameless(essence: Object, namespace: str, identities: Mapping[str, str]) -> Object:
    text = json.dumps(essence, sort_keys=True).replace(namespace, "<namespace>")
    for uid, words in identities.items():
        text = text.replace(uid, words)
    return dict(json.loads(text))


def _essence(kind: str, body: Object, bodies: Mapping[str, list[Object]]) -> Object:
    metadata = {key: body["metadata"][key] for key in METADATA if key in body["metadata"]}
    if kind == "Pod":
        metadata["labels"] = _uidless(metadata["labels"])
        metadata.pop("generation")  # the scheduler's and Kueue's changes count too
    owners = [
        (owner["kind"], owner["name"], owner["uid"]) for owner in body["metadata"].get("ownerReferences", [])
    ]
    essence = {"metadata": metadata, "owners": owners, "going": "deletionTimestamp" in body["metadata"]}
    if kind == "Secret":
        return essence | {
            "type": body["type"],
            "keys": sorted(body["data"]),
            "authority": _authority(body, bodies),
            "due": _due(body),
        }
    if kind == "ConfigMap":
        return essence | {"data": body["data"]}
    status = body.get("status", {})
    if kind == "Pod":
        restarts = [container["restartCount"] for container in status.get("containerStatuses", [])]
        return essence | {"spec": _placeless(body["spec"]), "phase": status["phase"], "restarts": restarts}
    if kind in ("TrainingRun", "LearnerUnit"):
        return essence | {"spec": body["spec"], "status": _lasting(status)}
    return essence | {"spec": body["spec"]}


def _uidless(labels: Object) -> Object:
    kept = {key: value for key, value in labels.items() if key != LABEL_HOLDS}
    if LABEL_POD_GROUP in kept:
        kept[LABEL_POD_GROUP] = kept[LABEL_POD_GROUP].rpartition("-")[0]
    return kept


def _placeless(spec: Object) -> Object:
    selector = {key: value for key, value in spec.get("nodeSelector", {}).items() if key != NODE_POOL}
    kept = {key: value for key, value in spec.items() if key not in ("affinity", "nodeName")}
    return kept | {"nodeSelector": selector}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in OF_A_MOMENT}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _due(secret: Object) -> list[bool]:
    """Of each certificate that it holds the key of: whether it is time for another."""
    data, now = secret["data"], datetime.datetime.now(datetime.UTC)
    pem = base64.b64decode(data.get("tls.crt") or data["ca.crt"])
    found = x509.load_pem_x509_certificates(pem)
    return [Life(one.not_valid_before_utc, one.not_valid_after_utc).due(now) for one in found]


def _authority(secret: Object, bodies: Mapping[str, list[Object]]) -> list[str]:
    """Names of all Secrets that trust the very same authority."""
    mine = secret["data"].get("ca.crt")
    return sorted(
        other["metadata"]["name"] for other in bodies["Secret"] if other["data"].get("ca.crt") == mine
    )
