"""`kubectl atoll status|top|ledger`: what `atoll` prints, in kubectl's formats."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable
from functools import partial

from atoll_cli.errors import UsageError
from atoll_cli.ledger import show_ledger
from atoll_cli.plugin.names import PREFIXES, RUN, UNIT, named
from atoll_cli.status import show_status


def run(options: argparse.Namespace) -> int:
    """Exit status as of the command of `atoll`. Raises `CommandError`."""
    if options.run is not None:
        options.run = named(RUN, options.run)
    options.json = options.output in ("json", "yaml", "name")
    show: Callable[[argparse.Namespace], int] = show_ledger
    if options.command != "ledger":
        show = partial(show_status, wide=options.output == "wide", top=options.command == "top")
    if options.output not in ("yaml", "name"):
        return show(options)
    if getattr(options, "watch", False):
        raise UsageError(f"--watch goes with -o json or a table, not with -o {options.output}")
    with contextlib.redirect_stdout(io.StringIO()) as told:
        status = show(options)
    document = json.loads(told.getvalue())
    if options.output == "yaml":
        import yaml

        print(yaml.safe_dump(document, sort_keys=False), end="")
        return status
    if options.run is None:
        names = [f"{PREFIXES[RUN][-1]}/{each['name']}" for each in document["runs"]]
    else:
        names = [f"{PREFIXES[RUN][-1]}/{options.run}"]
        names += [f"{PREFIXES[UNIT][-1]}/{name}" for name in document["units"]]
    print("\n".join(names))
    return status
