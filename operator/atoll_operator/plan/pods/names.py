"""Names of a run's objects. Every pod name is a host name label, so it has at most 63 characters."""

from __future__ import annotations

from atoll_operator.api.sections import MAX_UNITS
from atoll_operator.plan.pods.topology import MAX_HOSTS

LABEL_LIMIT = 63
MAX_INCARNATION = 999_999
NAMES_LIMIT = LABEL_LIMIT - len(f"--{MAX_UNITS - 1}-{MAX_INCARNATION}-{MAX_HOSTS - 1}")
"""Characters that the names of run and pool may have together: `<run>-<pool>-<index>-<number>-<host>`. The number is an
incarnation: in a pod's name the one for which it was created, in its hostname the placement."""
EVALUATED_LIMIT = LABEL_LIMIT - len("-evaluator-") - 10
"""Characters of an evaluated run's name: the evaluator's pod has a label with its StatefulSet's name and a hash."""
UNIT_NAME_LIMIT = LABEL_LIMIT - len(f"-{MAX_INCARNATION}-{MAX_HOSTS - 1}")
"""Characters of the name of a unit made by hand."""


def unit_name(run: str, pool: str, index: int) -> str:
    return f"{run}-{pool}-{index}"


def pod_name(unit: str, number: int, host: int | str) -> str:
    """The pod's name if `number` is the incarnation for which it is created; its hostname if it is the placement."""
    return f"{unit}-{number}-{host}"


def pod_group(unit: str, placement: int, uid: str) -> str:
    """Kueue's name for the pods of a placement. The uid tells apart two units of one name, which both count from 1."""
    return f"{unit}-{placement}-{uid[:4]}"


def ca_secret(run: str) -> str:
    return f"{run}-ca"


def tls_secret(member: str) -> str:
    """The Secret of a unit, of `syncer(run)` or of `evaluator(run)`."""
    return f"{member}-tls"


def config_map(run: str) -> str:
    return f"{run}-config"


def syncer(run: str) -> str:
    """Name of StatefulSet and Service."""
    return f"{run}-syncer"


def syncer_host(run: str, namespace: str) -> str:
    """Host name of all shards' pods together."""
    return f"{syncer(run)}.{namespace}.svc"


def shard_host(run: str, namespace: str, shard: int) -> str:
    """The stable name of one shard's pod."""
    return f"{syncer(run)}-{shard}.{syncer_host(run, namespace)}"


def evaluator(run: str) -> str:
    return f"{run}-evaluator"


def evaluator_host(run: str, namespace: str) -> str:
    return f"{evaluator(run)}-0.{evaluator(run)}.{namespace}.svc"
