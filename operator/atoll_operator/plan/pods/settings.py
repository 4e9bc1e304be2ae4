"""What a run says of its pods: the settings, and a hash by which its pods are replaced when they change.

The defaults of a newer operator are for runs that begin under it. An existing run changes its image, and the operator's
variables with it, only when its user sets or clears `spec.image` (docs/decisions/changes.md). A new operator may also
change the template of syncer and evaluator. So their StatefulSets have `updateStrategy: OnDelete`, and the operator
deletes, one by one, the pods whose hash differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel

from atoll_operator.api.group import Object
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView


def pod_settings(own: PodSettings, spec: TrainingRunSpec, held: RuntimeStatus | None) -> PodSettings:
    """The settings for every pod of a run.

    Args:
        own: the operator's defaults.
        held: image and variables in the run's status; None before its first reconciliation.
    """
    image, environment = spec.image or own.image, own.environment
    if held is not None and held.asked == (spec.image or ""):
        image = held.image
    if held is not None and held.image == image:
        environment = held.environment
    account, template = spec.service_account_name, spec.pod_template
    return replace(own, image=image, environment=environment, service_account=account, template=template)


def runtime_status(spec: TrainingRunSpec, settings: PodSettings) -> RuntimeStatus:
    return RuntimeStatus(image=settings.image, asked=spec.image or "", environment=dict(settings.environment))


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
