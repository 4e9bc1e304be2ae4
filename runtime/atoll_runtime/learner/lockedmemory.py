"""How much memory this process may lock: a TPU's driver pins what the chips read and write by themselves."""

from __future__ import annotations

import logging
import resource
from collections.abc import Mapping

from atoll_runtime.contract import ENV_LOCK_MEMORY
from atoll_runtime.learner.errors import Terminal

log = logging.getLogger(__name__)


def raise_limit(environment: Mapping[str, str]) -> None:
    """To the hard limit; to none where the pod was given the right to, which needs CAP_SYS_RESOURCE.

    Raises:
        Terminal: the pod was said to have that right, and has not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    most = resource.RLIM_INFINITY if environment.get(ENV_LOCK_MEMORY) == "true" else hard
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
    except (OSError, ValueError) as error:
        raise Terminal(
            "LockedMemoryLimited",
            f"{ENV_LOCK_MEMORY} is 'true', and the limit of {_words(hard)} cannot be raised: {error}; a container "
            "with CAP_SYS_RESOURCE, as root, is right",
        ) from error
    log.info("locked memory: limit %s, of %s when the process began", _words(most), _words(soft))


def _words(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
