"""What all pods of a run have in common: Pod Security `restricted`, no API token, certificates, configuration, the
settings of the run, and a hash by which its pods are replaced when these change.

The defaults of a newer operator apply only to runs that begin under it. An existing run changes its image, and the
operator's variables with it, only when its user sets or clears `spec.image` (docs/decisions/changes.md). A new operator
may also change the template of syncer and evaluator. So their StatefulSets have `updateStrategy: OnDelete`, and the
operator deletes, one by one, the pods whose hash differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import BaseModel

from atoll_operator.api.common import Resources
from atoll_operator.api.group import Object
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec
from atoll_operator.plan.conditions import document
from atoll_operator.plan.pods.names import config_map, tls_secret
from atoll_runtime.contract import INCARNATION_FILE, JOURNAL_DIR, RUN_FILE, TERMINATION_LOG, TLS_DIR

CONTAINER = "main"
"""Name of the container in every pod that the operator creates. Others may be injected."""
USER = 65532
RUN_DIR = RUN_FILE.rpartition("/")[0]
POD_DIR = INCARNATION_FILE.rpartition("/")[0]
VOLUMES = ("run", "tls", "tmp", "pod", "journal")
"""Names of the volumes that the operator defines."""
PATHS = (RUN_DIR, TLS_DIR, "/tmp", POD_DIR, JOURNAL_DIR, TERMINATION_LOG)
"""Their mount paths, and the path at which the kubelet mounts a file."""
GRACE_SECONDS = 30
"""Time from SIGTERM to SIGKILL for pods of syncer and evaluator."""
LEAVE_SECONDS = 30
"""`tolerationSeconds` for a lost node. Kubernetes' default of 300 s would dominate a heal."""
DRAIN_SECONDS = 60
"""Time from SIGTERM to SIGKILL for healthy pods: of a unit that moves, is suspended or removed. All hosts end together
between two steps. A step of the largest models takes some seconds, and the links get 5 s to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the operator's settings and the run's spec define for every pod of a run."""

    run: str
    image: str
    pull_policy: str
    environment: Mapping[str, str]
    service_account: str | None = None
    template: PodTemplate = field(default_factory=PodTemplate)

    def variable(self, name: str) -> str | None:
        """Plain value of a variable, or empty; None if it has a source. The run's value overrides the operator's."""
        said = {item.name: None if item.value_from else item.value or "" for item in self.template.env}
        return said.get(name, self.environment.get(name, ""))


def pod_settings(own: PodSettings, spec: TrainingRunSpec, held: RuntimeStatus | None) -> PodSettings:
    """The settings for every pod of a run, from the operator's defaults and from image and variables in the run's
    status, which are None before its first reconciliation."""
    image, environment = spec.image or own.image, own.environment
    if held is not None and held.asked == (spec.image or ""):
        image = held.image
    if held is not None and held.image == image:
        environment = held.environment
    account, template = spec.service_account_name, spec.pod_template
    return replace(own, image=image, environment=environment, service_account=account, template=template)


def said(section: BaseModel, *without: str) -> Object:
    """A section without these fields and without defaults, so that a new optional field does not change the hash. Pass
    a section whose defaults may change between versions with all its values instead."""
    return document(section, exclude_defaults=True, exclude=set(without))


def digest(settings: PodSettings, *sections: Object) -> str:
    """Hash of everything that a run says of pods of one kind. Changing how it is computed restarts the pods of every
    run."""
    own = {"environment": dict(settings.environment), "serviceAccount": settings.service_account}
    text = json.dumps([settings.image, own, said(settings.template), *sections], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lost_nodes(seconds: int) -> list[Object]:
    """Tolerations that keep a pod on a lost node for this time."""
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]


def container(
    settings: PodSettings, module: str, environment: Mapping[str, str], resources: Resources, **more: str
) -> Object:
    """The container that runs this module. `environment` overrides the run's variables, and those override the
    operator's; `more` are further resources."""
    plain = {name: {"name": name, "value": value} for name, value in settings.environment.items()}
    added = {item.name: document(item) for item in settings.template.env}
    own = {name: {"name": name, "value": value} for name, value in {"HOME": "/tmp", **environment}.items()}
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["python", "-m", module],
        "env": list({**plain, **added, **own}.values()),
        "resources": {"requests": {**resources.requests, **more}, "limits": {**resources.limits, **more}},
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "run", "mountPath": RUN_DIR, "readOnly": True},
            {"name": "tls", "mountPath": TLS_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *map(document, settings.template.volume_mounts),
        ],
    }


def pod_spec(settings: PodSettings, member: str, main: Object) -> Object:
    """A pod's spec with this container; `member` names the certificate's Secret."""
    template = settings.template
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [main],
        "volumes": [
            {"name": "run", "configMap": {"name": config_map(settings.run)}},
            {"name": "tls", "secret": {"secretName": tls_secret(member), "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
            *map(document, template.volumes),
        ],
    }
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [document(item) for item in template.image_pull_secrets]
    if template.priority_class_name is not None:
        spec["priorityClassName"] = template.priority_class_name
    return spec


def pod_metadata(settings: PodSettings, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Object:
    """Labels and annotations of a pod: the operator's, and those of the run."""
    own = settings.template
    return {"labels": {**own.labels, **labels}, "annotations": {**own.annotations, **annotations}}


def headless(metadata: Object, selector: Mapping[str, str], ports: Mapping[str, int]) -> Object:
    """A headless Service. Pods get their DNS names before they are ready, because the hosts of a mesh look for each
    other then, and the operator reads from syncer and evaluator why they are not ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(selector),
        "ports": [{"name": each, "port": port, "targetPort": port} for each, port in ports.items()],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def container_ports(ports: Mapping[str, int]) -> list[Object]:
    return [{"name": name, "containerPort": port} for name, port in ports.items()]
