"""Completes the command line as kubectl asks its plugins to: one candidate a line, then `:4` (no file names)."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence

from atoll_cli.errors import CommandError, command_errors
from atoll_cli.formats import PREFIXES, RUN, UNIT
from atoll_cli.kubectl import Kubectl
from atoll_cli.plugin.options import FILES, parser
from atoll_local.programs import installed

SECONDS = 3.0
"""Time limit for one listing, because a shell waits for it."""
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
    asked = by_flag.get(before[-1])
    where = _where(before)
    if asked is not None and asked.nargs != 0:
        if asked.choices:
            yield from map(str, asked.choices)
        elif asked.dest == "namespace":
            yield from _names("namespaces", [])
        return
    if last.startswith("-"):
        yield from by_flag
        return
    positional = [action.metavar for action in actions if not action.option_strings]
    given = sum(not word.startswith("-") for word in before[1:]) - len(where) // 2
    if given >= len(positional):
        return
    wanted = str(positional[given])
    if wanted.startswith("UNIT"):
        yield from _objects(UNIT, last, where)
        yield from wanted.split("|")[1:]
    elif wanted == "RUN":
        yield from _objects(RUN, last, where)


def _where(before: Sequence[str]) -> list[str]:
    """Return the words that select the namespace and the context."""
    pairs = itertools.pairwise(before)
    return [
        part for flag, value in pairs if flag in ("-n", "--namespace", "--context") for part in (flag, value)
    ]


def _objects(kind: str, last: str, where: list[str]) -> Iterator[str]:
    prefix, slash, _ = last.rpartition("/")
    if not slash or prefix in PREFIXES[kind]:
        yield from (f"{prefix}{slash}{name}" for name in _names(f"{kind}s.atoll.dev", where))


def _names(kinds: str, where: list[str]) -> Iterator[str]:
    try:
        with command_errors():
            told = Kubectl(program=installed("kubectl")).run(
                "get", kinds, *where, "-o", "name", timeout=SECONDS
            )
    except CommandError:
        return
    yield from (line.rpartition("/")[2] for line in told.split())
