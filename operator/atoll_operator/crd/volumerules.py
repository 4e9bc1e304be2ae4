"""Volumes of a pod template: as strict as in a pod, and none in the place of the operator's own."""

from __future__ import annotations

from atoll_operator.api.pool import DNS_LABEL
from atoll_operator.api.volumes import MAX_VOLUMES
from atoll_operator.crd.cel import Rule, quoted, rule, valued
from atoll_operator.crd.podrules import KEY, SUBDOMAIN, constrain_quantity
from atoll_operator.crd.schema import Schema
from atoll_operator.plan.pods.template import PATHS, VOLUMES

SOURCES = ("persistentVolumeClaim", "csi", "configMap", "secret", "emptyDir")
KERNEL = ("/proc", "/sys")
"""Container runtimes refuse mounts there, or lay their own over them."""
FOLDERS = r"([^/.]|[.][^/.])[^/]*(/([^/.]|[.][^/.])[^/]*)*"
"""A path from somewhere down: no part of it is empty, `.`, or begins with `..`."""
RELATIVE = f"^{FOLDERS}/?$"
ABSOLUTE = f"^/{FOLDERS}$"


def constrain_volumes(template: Schema) -> None:
    """`volumes` and `volumeMounts` of a pod template."""
    parts = template["properties"]
    for name, key in (("volumes", "name"), ("volumeMounts", "mountPath")):
        parts[name] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    _constrain_volume(parts["volumes"]["items"])
    _constrain_mount(parts["volumeMounts"]["items"])
    template["x-kubernetes-validations"] = [_known(index) for index in range(MAX_VOLUMES)]


def _known(index: int) -> Rule:
    """Of one mount: a message can name a value only of a place that is known, for its cost must be bounded."""
    name = f"volumeMounts[{index}].name"
    known = f"self.volumeMounts.size() <= {index} || self.volumes.exists(volume, volume.name == self.{name})"
    # A rule's path knows no index; the message has it.
    return {**valued(known, name, "must be the name of one of volumes"), "fieldPath": ".volumeMounts"}


def _constrain_volume(volume: Schema) -> None:
    parts = volume["properties"]
    parts["name"]["pattern"] = DNS_LABEL
    volume["x-kubernetes-validations"] = [
        valued(
            f"!(self.name in {quoted(VOLUMES)})",
            "name",
            f"must be another than those of the operator's own volumes: {', '.join(VOLUMES)}",
        ),
        rule(
            f"[{', '.join(f'has(self.{name})' for name in SOURCES)}].filter(given, given).size() == 1",
            f"exactly one of {', '.join(SOURCES)} must be given",
        ),
    ]
    parts["persistentVolumeClaim"]["properties"]["claimName"]["pattern"] = SUBDOMAIN
    parts["configMap"]["properties"]["name"]["pattern"] = SUBDOMAIN
    parts["secret"]["properties"]["secretName"]["pattern"] = SUBDOMAIN
    csi = parts["csi"]["properties"]
    csi["driver"]["pattern"] = SUBDOMAIN
    csi["nodePublishSecretRef"]["properties"]["name"]["pattern"] = SUBDOMAIN
    constrain_quantity(parts["emptyDir"]["properties"]["sizeLimit"])
    for source in ("configMap", "secret"):
        file = parts[source]["properties"]["items"]["items"]
        file["properties"]["key"]["pattern"] = KEY
        file["x-kubernetes-validations"] = [
            valued(
                f"self.path.matches('{RELATIVE}')", "path", "must be a path without '..', such as ca/root.pem"
            )
        ]


def _constrain_mount(mount: Schema) -> None:
    ours = (*PATHS, *KERNEL)
    below = "self.mountPath.startsWith(ours + '/') || ours.startsWith(self.mountPath + '/')"
    mount["properties"]["name"]["pattern"] = DNS_LABEL
    mount["x-kubernetes-validations"] = [
        valued(
            f"self.mountPath.matches('{ABSOLUTE}') && !self.mountPath.contains(':')",
            "mountPath",
            "must be an absolute path without '..', ':' and a slash at its end, such as /mnt/data",
        ),
        valued(
            f"!{quoted(ours)}.exists(ours, self.mountPath == ours || {below})",
            "mountPath",
            f"must be neither a path that the operator or the kernel has, nor above or below one: {', '.join(ours)}",
        ),
        valued(
            f"!has(self.subPath) || self.subPath.matches('{RELATIVE}')",
            "subPath",
            "must be a relative path without '..', such as tokens/v1",
        ),
    ]
