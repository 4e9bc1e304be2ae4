"""`kubectl atoll suspend|resume|scale|checkpoint|heal|drain`: one merge patch of one object.

Requests that are not part of a spec are annotations. The value is the incarnation that must end or the global step that
must be passed, so the operator carries out each request once, whenever it reads it.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.formats import RUN, UNIT, named
from atoll_cli.kubectl import Kubectl, chosen
from atoll_cli.plugin.options import CHANGES

MANAGER = "kubectl-atoll"


def run(options: argparse.Namespace) -> int:
    """Patch the object. Raises `CommandError`."""
    kind = RUN if CHANGES[options.command][0] == "RUN" else UNIT
    kubectl = chosen(options)
    name = named(kind, options.name)
    patch = json.dumps(_patch(options, kubectl, name))
    form = ("-o", options.output) if options.output else ()
    arguments = ("--type=merge", f"--field-manager={MANAGER}", "-p", patch, *form)
    print(kubectl.run("patch", f"{kind}s.atoll.dev", name, *arguments), end="")
    return 0


def _patch(options: argparse.Namespace, kubectl: Kubectl, name: str) -> dict[str, Any]:
    command = options.command
    if command in ("suspend", "resume"):
        return {"spec": {"suspend": command == "suspend"}}
    if command == "scale":
        if options.units < 0:
            raise UsageError(f"--units {options.units}: 0 or more is wanted")
        return {"spec": {"units": options.units}}
    kind, field = (RUN, "globalStep") if command == "checkpoint" else (UNIT, "incarnation")
    body = json.loads(kubectl.run("get", f"{kind}s.atoll.dev", name, "-o", "json"))
    number = body.get("status", {}).get(field, 0)
    if not number:
        raise CommandError(f"{kind} {name} has not started yet")
    return {"metadata": {"annotations": {f"atoll.dev/{command}": str(number)}}}
