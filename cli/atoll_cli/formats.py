"""Options of the commands that read a cluster, names of objects, and output formats. All are as in kubectl."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from atoll_cli.errors import UsageError

RUN = "trainingrun"
UNIT = "learnerunit"
PREFIXES = {
    RUN: ("trun", "trainingrun", "trainingruns", "trainingruns.atoll.dev", "trainingrun.atoll.dev"),
    UNIT: ("lu", "learnerunit", "learnerunits", "learnerunits.atoll.dev", "learnerunit.atoll.dev"),
}


def named(kind: str, text: str) -> str:
    """Return the name without its prefix. Raises `UsageError` if it is empty, or the prefix is of another kind."""
    prefix, slash, name = text.rpartition("/")
    if not name or (slash and prefix not in PREFIXES[kind]):
        raise UsageError(f"{text!r}: NAME or {PREFIXES[kind][0]}/NAME is wanted")
    return name


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the options that choose the cluster and the namespace."""
    command.add_argument("-n", "--namespace", metavar="NS", help="default: the context's")
    command.add_argument("--context", metavar="NAME", help="default: the current one")


def add_status(status: argparse.ArgumentParser) -> None:
    """Add the options of `status` and `top`."""
    status.add_argument("run", metavar="RUN", nargs="?", help="default: every run, a line each")
    status.add_argument("-A", "--all-namespaces", action="store_true", help="the runs of every namespace")
    status.add_argument("-w", "--watch", action="store_true", help="again every 2 s until the run has ended")
    add_cluster(status)
    _add_output(status, "json", "yaml", "wide", "name")


def add_ledger(ledger: argparse.ArgumentParser) -> None:
    ledger.add_argument("run", metavar="RUN")
    add_cluster(ledger)
    _add_output(ledger, "json", "yaml")


def _add_output(command: argparse.ArgumentParser, *forms: str) -> None:
    command.add_argument("-o", "--output", choices=forms, help="default: a table")
    command.add_argument(
        "--json", action="store_const", const="json", dest="output", help="the same as -o json"
    )


def tell(document: Mapping[str, Any], form: str) -> None:
    """Print a document as `json` or `yaml`."""
    if form == "json":
        print(json.dumps(document), flush=True)
        return
    import yaml

    print(yaml.safe_dump(document, sort_keys=False), end="")


def tell_names(runs: Sequence[str], units: Sequence[str] = ()) -> None:
    """Print the names of objects as kubectl does."""
    for kind, names in ((RUN, runs), (UNIT, units)):
        for name in names:
            print(f"{PREFIXES[kind][-1]}/{name}")
