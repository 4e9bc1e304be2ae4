"""Completes the command line as kubectl asks its plugins to: one candidate a line, then `:4` (no file names)."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from atoll_cli.errors import CommandError, command_errors
from atoll_cli.formats import PREFIXES, RUN, UNIT
from atoll_cli.kubectl import Kubectl
from atoll_cli.plugin.options import FILES, parser
from atoll_local.programs import installed

SECONDS = 3.0
"""Time limit for one listing, because a shell waits for it."""
PLACES = {"-n": "namespace", "--namespace": "namespace", "--context": "context"}
NO_FILES, FILE_NAMES = ":4", ":0"
"""Directives of cobra: complete no file names, or let the shell complete them."""


def execute(words: Sequence[str]) -> int:
    """Print the candidates for the last word. Names of objects are missing if the cluster does not answer."""
    *before, last = words or [""]
    known = set(_candidates(before, last))
    if not known and before and before[0] in FILES and not last.startswith("-"):
        print(FILE_NAMES)
        return 0
    for candidate in sorted(each for each in known if each.startswith(last)):
        print(candidate)
    print(NO_FILES)
    return 0


def _candidates(before: Sequence[str], last: str) -> Iterator[str]:
    commands = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    if not before:
        yield from commands.choices
        return
    if before[0] not in commands.choices:
        return
    actions = commands.choices[before[0]]._actions
    by_flag = {flag: action for action in actions for flag in action.option_strings}
    takes_value = {flag for flag, action in by_flag.items() if action.nargs != 0}
    where = _where(before)
    if before[-1] in takes_value:
        asked = by_flag[before[-1]]
        if asked.choices:
            yield from map(str, asked.choices)
        elif asked.dest == "namespace":
            yield from _names("namespaces", where)
        return
    if last.startswith("-"):
        yield from by_flag
        return
    positional = [action.metavar for action in actions if not action.option_strings]
    pairs = itertools.pairwise(before)
    given = sum(not word.startswith("-") and previous not in takes_value for previous, word in pairs)
    if given >= len(positional):
        return
    wanted = str(positional[given])
    if wanted.startswith("UNIT"):
        yield from _objects(UNIT, last, where)
        yield from wanted.split("|")[1:]
    elif wanted == "RUN":
        yield from _objects(RUN, last, where)


def _where(before: Sequence[str]) -> dict[str, Any]:
    """Return the namespace and the context that are given, by their names in `Kubectl`."""
    pairs = [*itertools.pairwise(before), *(tuple(word.split("=", 1)) for word in before if "=" in word)]
    return {PLACES[flag]: value for flag, value in pairs if flag in PLACES}


def _objects(kind: str, last: str, where: dict[str, Any]) -> Iterator[str]:
    prefix, slash, _ = last.rpartition("/")
    if not slash or prefix in PREFIXES[kind]:
        yield from (f"{prefix}{slash}{name}" for name in _names(f"{kind}s.atoll.dev", where))


def _names(kinds: str, where: dict[str, Any]) -> Iterator[str]:
    try:
        with command_errors():
            kubectl = Kubectl(program=installed("kubectl"), **where)
            told = kubectl.run("get", kinds, "-o", "name", timeout=SECONDS)
    except CommandError:
        return
    yield from (line.rpartition("/")[2] for line in told.split())
