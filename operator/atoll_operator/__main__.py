"""`python -m atoll_operator`: reads the settings once and runs until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys

from atoll_operator import settings
from atoll_operator.kube import login, logs
from atoll_operator.kube.errors import CredentialsError, Refused, Restored, Unreachable
from atoll_operator.operator import App

DEEPEST = 25_000
"""Levels of calls that Python allows. The API server takes JSON of 10,000 levels, which parts of a podTemplate may
have: `api.podtemplate` refuses them once they are decoded."""


def main() -> int:
    """Returns 2 for a wrong setting, 1 when a part failed, 0 when it was asked to stop."""
    try:
        configured = settings.read(os.environ)
        logs.configure(configured.log_format)
        access = login.load(os.environ)
    except (settings.SettingsError, CredentialsError) as error:
        print(f"atoll-operator: {error}", file=sys.stderr)
        return 2
    sys.setrecursionlimit(DEEPEST)
    # What the modules made lives as long as the process, so it is frozen. An event makes thousands of objects, none in
    # a cycle. A full collection takes longer than a pass, so `App` runs it between two passes.
    gc.freeze()
    gc.set_threshold(20_000, 5, 1_000_000)
    logs.log(logging.INFO, "starts", server=access.server, namespaces=configured.namespaces or "all")
    try:
        asyncio.run(App(configured, access).run())
    except (OSError, Refused, Restored, Unreachable) as error:
        logs.log(logging.ERROR, "ends", error=f"{type(error).__name__}: {error}")
        return 1
    except Exception:
        logs.LOG.exception("ends: a part of the operator failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
