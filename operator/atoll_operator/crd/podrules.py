"""What pods take unchanged from a run or a unit, as strict here as in a pod.

Else the API server would take the run and refuse its pods, long after the user has looked away.
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll_operator.api.group import LABEL_MANAGER, TPU
from atoll_operator.crd.cel import Rule, quoted, rule
from atoll_operator.crd.schema import Schema

LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"
DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
QUALIFIED = rf"^({DOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?$"
"""Key of a label or a taint, or name of a resource."""
LONGEST_DOMAIN = 253
SUBDOMAIN = rf"^{DOMAIN}$"
IMAGE = r"^[!-~]+$"
QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?$"
"""Not below zero, and what Kubernetes can read."""
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
KEY = r"^[-._a-zA-Z0-9]+$"
"""Of a value in a Secret or ConfigMap."""
OUR_VARIABLES = ("HOME", "JAX_COORDINATOR_PORT")
OUR_PREFIXES = ("ATOLL_", "TPU_", "MEGASCALE_")
"""What all other variables begin with that the operator sets."""
OUR_DOMAINS = ("atoll.dev/", "kueue.x-k8s.io/", LABEL_MANAGER)
"""What keys of labels and annotations begin with that the operator sets."""
STANDARD = ("cpu", "memory", "ephemeral-storage")
"""Of a container, by their own names; others are huge pages, or have a domain (`example.com/gadget`)."""
PAGES = "hugepages-"
"""What names of huge pages begin with; the size of a page follows."""


def constrain_placement(place: Schema) -> None:
    """`nodeSelector`, `tolerations` and `resources` of a pool, a unit or the syncer."""
    parts = place["properties"]
    parts["nodeSelector"]["additionalProperties"]["pattern"] = LABEL_VALUE
    parts["nodeSelector"]["x-kubernetes-validations"] = [
        rule(
            f"self.all(key, {_is_qualified('key')})",
            f"nodeSelector must have keys of node labels: {_QUALIFIED_WORDS}",
        )
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
        amounts["x-kubernetes-validations"] = list(_amount_rules())
    resources["x-kubernetes-validations"] = [
        rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "!quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name]))))",
            "requests must be at most the limits",
            "requests",
        ),
        rule(
            f"!has(self.requests) || self.requests.all(name, !(name.contains('/') || name.startsWith('{PAGES}')) || "
            "(has(self.limits) && name in self.limits && "
            "string(self.requests[name]) == string(self.limits[name])))",
            "requests of resources with a domain and of huge pages must be the same as their limits",
            "requests",
        ),
        rule(
            f"!has(self.limits) || !self.limits.exists(name, name.startsWith('{PAGES}')) || ['cpu', 'memory'].exists("
            "name, name in self.limits || (has(self.requests) && name in self.requests))",
            "huge pages need cpu or memory beside them",
            "limits",
        ),
    ]


def _amount_rules() -> Iterator[Rule]:
    """Of `requests` or `limits`."""
    longest = LONGEST_DOMAIN - len("requests.")  # which a quota's name has before it
    with_domain = (
        f"name.contains('/') && name != '{TPU}' && !name.contains('kubernetes.io/') && !name.startsWith('requests.') "
        f"&& {_is_qualified('name', longest)}"
    )
    yield rule(
        f"self.all(name, name in {list(STANDARD)} || name.matches('^{PAGES}[1-9][0-9]*[KMG]i$') || ({with_domain}))",
        f"resources must be {', '.join(STANDARD)}, or huge pages such as {PAGES}2Mi, or have a domain of at most "
        f"{longest} characters that is not Kubernetes' own, such as example.com/gadget; {TPU} is set by the operator",
    )
    yield rule(
        "self.all(name, !name.contains('/') || string(self[name]).matches('^[0-9]+([kMGTPE]|[KMGTPE]i)?$'))",
        "resources with a domain must be whole numbers, such as 2",
    )
    pages = "quantity(string(self[name])).asInteger() % quantity(name.split('-')[1]).asInteger() == 0"
    yield rule(
        f"self.all(name, !name.matches('^{PAGES}[1-9][0-9]*[KMG]i$') || "
        f"(quantity(string(self[name])).isInteger() && {pages}))",
        f"huge pages must be whole pages, such as 4Mi of {PAGES}2Mi",
    )


def constrain_template(template: Schema) -> None:
    """`podTemplate` of a run or a unit."""
    parts = template["properties"]
    parts["labels"]["additionalProperties"]["pattern"] = LABEL_VALUE
    for name in ("labels", "annotations"):
        parts[name]["x-kubernetes-validations"] = [
            rule(
                f"self.all(key, {_is_qualified('key')})",
                f"{name} must have keys such as team or example.com/team: {_QUALIFIED_WORDS}",
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


_QUALIFIED_WORDS = (
    f"a name of at most 63 characters, after a domain of at most {LONGEST_DOMAIN} where there is one"
)


def _is_qualified(key: str, longest: int = LONGEST_DOMAIN) -> str:
    """A pattern cannot say how long the domain may be."""
    return f"{key}.matches('{QUALIFIED}') && {key}.split('/')[0].size() <= {longest}"


def constrain_quantity(amount: Schema) -> None:
    """An amount as Kubernetes writes it."""
    amount["pattern"] = QUANTITY
    amount["x-kubernetes-validations"] = [
        rule("type(self) == string || self >= 0", "an amount must not be below zero")
    ]
