"""Pods of syncer and evaluator are made anew when what their run says of them has changed, and for no other reason.

Their template changes with the version of the operator, too. So the controller of the StatefulSet replaces only pods
that are deleted (`OnDelete`), and here it is decided which: those with another digest than the run's, one by one.
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
    """What a section says, but for these fields and for what is at its default: a new version has new fields.

    A section whose default may be another in a new version is given by itself: an object keeps what it was made with.
    """
    return section.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude=set(without)
    )


def digest(settings: PodSettings, *sections: Object) -> str:
    """Of all that a run says of pods of one kind. Another way to compute it would restart them in every run."""
    own = {"environment": dict(settings.environment), "serviceAccount": settings.service_account}
    text = json.dumps([settings.image, own, said(settings.template), *sections], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def outdated(pods: Sequence[PodView], wanted: str, replicas: int) -> tuple[PodView, ...]:
    """Pods to delete now: all that are not ready, for they have nothing to lose; else one, when all others are ready.

    Args:
        pods: of one StatefulSet. One without a digest is not of its template, and not ours to delete.
        wanted: digest that they are to carry.
        replicas: how many there are to be; with none, those that are left are on their way out.
    """
    old = [pod for pod in pods if pod.contract not in ("", wanted) and pod.deletion_time is None]
    if not replicas or not old:
        return ()
    if idle := tuple(pod for pod in old if not pod.ready):
        return idle
    whole = len(pods) == replicas and all(pod.ready and pod.deletion_time is None for pod in pods)
    return (max(old, key=lambda pod: (len(pod.name), pod.name)),) if whole else ()
