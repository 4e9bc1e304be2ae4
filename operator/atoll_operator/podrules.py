"""What pods take unchanged from a run or a unit, as strict here as in a pod.

Else the API server would take the run and refuse its pods, long after the user has looked away.
"""

from __future__ import annotations

from atoll_operator.api.group import LABEL_MANAGER, TPU
from atoll_operator.cel import quoted, rule
from atoll_operator.schema import Schema

LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"
DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
QUALIFIED = rf"^({DOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?$"
"""Key of a label or a taint, or name of a resource."""
SUBDOMAIN = rf"^{DOMAIN}$"
IMAGE = r"^[!-~]+$"
QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$"
"""Not below zero, and of at least a thousandth."""
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
KEY = r"^[-._a-zA-Z0-9]+$"
"""Of a value in a Secret or ConfigMap."""
OUR_VARIABLES = ("HOME", "JAX_COORDINATOR_PORT")
OUR_PREFIXES = ("ATOLL_", "TPU_", "MEGASCALE_")
"""What all other variables begin with that the operator sets."""
OUR_DOMAINS = ("atoll.dev/", "kueue.x-k8s.io/", LABEL_MANAGER)
"""What keys of labels and annotations begin with that the operator sets."""
STANDARD = ("cpu", "memory", "ephemeral-storage")
"""Of a container, by their own names; others have a domain (`example.com/gadget`)."""


def constrain_placement(place: Schema) -> None:
    """`nodeSelector`, `tolerations` and `resources` of a pool, a unit or the syncer."""
    parts = place["properties"]
    parts["nodeSelector"]["additionalProperties"]["pattern"] = LABEL_VALUE
    parts["nodeSelector"]["x-kubernetes-validations"] = [
        rule(f"self.all(key, key.matches('{QUALIFIED}'))", "nodeSelector must have keys of node labels")
    ]
    toleration = parts["tolerations"]["items"]
    toleration["properties"]["key"]["pattern"] = QUALIFIED
    toleration["properties"]["value"]["pattern"] = LABEL_VALUE
    toleration["x-kubernetes-validations"] = [
        rule(
            "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            "key is needed with operator Equal; operator Exists without a key tolerates every taint",
            "key",
        ),
        rule(
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "value must not be given with operator Exists, which takes any",
            "value",
        ),
        rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds can be given with effect NoExecute alone",
            "tolerationSeconds",
        ),
    ]
    resources = parts["resources"]
    for name in ("requests", "limits"):
        amounts = resources["properties"][name]
        constrain_quantity(amounts["additionalProperties"])
        amounts["x-kubernetes-validations"] = [
            rule(
                f"self.all(name, name in {list(STANDARD)} || name.startsWith('hugepages-') "
                f"|| (name != '{TPU}' && name.contains('/') && name.matches('{QUALIFIED}')))",
                f"resources must be {', '.join(STANDARD)} or have a domain, such as example.com/gadget; {TPU} is set "
                "by the operator",
            )
        ]
    resources["x-kubernetes-validations"] = [
        rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "!quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name]))))",
            "requests must be at most the limits",
            "requests",
        ),
        rule(
            "!has(self.requests) || self.requests.all(name, !name.contains('/') || (has(self.limits) && "
            "name in self.limits && string(self.requests[name]) == string(self.limits[name])))",
            "requests of resources with a domain must be the same as their limits",
            "requests",
        ),
    ]


def constrain_template(template: Schema) -> None:
    """`podTemplate` of a run or a unit."""
    parts = template["properties"]
    parts["labels"]["additionalProperties"]["pattern"] = LABEL_VALUE
    for name in ("labels", "annotations"):
        parts[name]["x-kubernetes-validations"] = [
            rule(
                f"self.all(key, key.matches('{QUALIFIED}'))",
                f"{name} must have keys such as team or example.com/team",
            ),
            rule(
                f"!self.exists(key, {quoted(OUR_DOMAINS)}.exists(ours, key.startsWith(ours)))",
                f"{name} must not have keys that the operator sets: {', '.join(OUR_DOMAINS)}",
            ),
        ]
    for name in ("env", "imagePullSecrets"):
        parts[name] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    parts["imagePullSecrets"]["items"]["properties"]["name"]["pattern"] = SUBDOMAIN
    parts["priorityClassName"]["pattern"] = SUBDOMAIN
    variable = parts["env"]["items"]
    variable["properties"]["name"]["pattern"] = VARIABLE
    ours = ", ".join((*OUR_VARIABLES, *(f"{prefix}*" for prefix in OUR_PREFIXES)))
    variable["x-kubernetes-validations"] = [
        rule(
            f"!(self.name in {quoted(OUR_VARIABLES)} "
            f"|| {quoted(OUR_PREFIXES)}.exists(ours, self.name.startsWith(ours)))",
            f"name must not be one that the operator sets: {ours}",
            "name",
        ),
        rule("has(self.value) != has(self.valueFrom)", "exactly one of value and valueFrom must be given"),
    ]
    source = variable["properties"]["valueFrom"]
    source["x-kubernetes-validations"] = [
        rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "exactly one of secretKeyRef and configMapKeyRef must be given",
        )
    ]
    for reference in source["properties"].values():
        reference["properties"]["name"]["pattern"] = SUBDOMAIN
        reference["properties"]["key"]["pattern"] = KEY


def constrain_quantity(amount: Schema) -> None:
    """An amount as Kubernetes writes it."""
    amount["pattern"] = QUANTITY
    amount["x-kubernetes-validations"] = [
        rule("type(self) == string || self >= 0", "an amount must not be below zero")
    ]
