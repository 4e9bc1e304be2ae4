"""Sets how much memory this process may lock. A TPU's driver pins the memory that the chips read and write directly."""

from __future__ import annotations

import logging
import resource
from collections.abc import Mapping

from atoll_runtime.contract import ENV_LOCK_MEMORY
from atoll_runtime.process import Terminal

log = logging.getLogger(__name__)


def raise_limit(environment: Mapping[str, str]) -> None:
    """Raises the limit to the hard limit, or removes it if the pod has the right to, which needs CAP_SYS_RESOURCE.

    Raises:
        Terminal: the limit cannot be raised, although the pod was said to have that right.
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
