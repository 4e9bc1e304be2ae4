"""Whose an object is that has a name which we want. What is not ours is neither changed nor deleted."""

from __future__ import annotations

from atoll_operator.api.group import LABEL_MANAGER, MANAGER, Object, controller_uid
from atoll_operator.kube.errors import Refused, Retry


def check_owner(found: Object, kind: str, owned: Object, inherit: bool = False) -> None:
    """Whether the object of this kind is that of `owned`, by its reference to it.

    Args:
        inherit: whether it may also be that of an earlier run or unit of the same name.

    Raises:
        Retry: an earlier run or unit of the same name had made it; the garbage collector takes it.
        Refused: somebody else made it.
    """
    if controller_uid(found) == owned["uid"]:
        return
    metadata = found["metadata"]
    name = metadata["name"]
    if controller_uid(found) and metadata.get("labels", {}).get(LABEL_MANAGER) == MANAGER:
        if inherit:
            return
        raise Retry(2.0, f"{kind} {name!r} belongs to an earlier object of the same name")
    problem = f"{kind} {name!r} is not the {owned['kind']}'s: delete it, or use another name for the {owned['kind']}"
    raise Refused(409, "AlreadyExists", problem)
