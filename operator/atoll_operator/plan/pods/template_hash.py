"""Replace pods of syncer and evaluator when their run's spec for them has changed, and for no other reason.

A new version of the operator may also change their template. So the StatefulSet has `updateStrategy: OnDelete`, and the
operator deletes, one by one, the pods whose hash differs from that of the run's spec.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pydantic import BaseModel

from atoll_operator.api.group import Object
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView


def said(section: BaseModel, *without: str) -> Object:
    """A section without these fields and without defaults, so that a new optional field does not change the hash.

    Pass a section whose defaults may change between versions with all its values instead.
    """
    return section.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude=set(without)
    )


def digest(settings: PodSettings, *sections: Object) -> str:
    """Hash of everything that a run says of pods of one kind.

    Changing how it is computed restarts the pods of every run.
    """
    own = {"environment": dict(settings.environment), "serviceAccount": settings.service_account}
    text = json.dumps([settings.image, own, said(settings.template), *sections], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def outdated(pods: Sequence[PodView], wanted: str, replicas: int) -> tuple[PodView, ...]:
    """Outdated pods to delete now: all that are not ready; otherwise one, when all pods are ready.

    Args:
        pods: of one StatefulSet. A pod without a hash is not from its template and is left alone.
        wanted: the hash that they should carry.
        replicas: wanted number of pods. With 0 the StatefulSet is already removing them.
    """
    old = [pod for pod in pods if pod.contract not in ("", wanted) and pod.deletion_time is None]
    if not replicas or not old:
        return ()
    if idle := tuple(pod for pod in old if not pod.ready):
        return idle
    whole = len(pods) == replicas and all(pod.ready and pod.deletion_time is None for pod in pods)
    return (max(old, key=lambda pod: (len(pod.name), pod.name)),) if whole else ()
