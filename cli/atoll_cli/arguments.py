"""A command's arguments as a table. One function reads and checks each argument."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atoll_cli import values
from atoll_cli.errors import UsageError

Read = Callable[[str, str], Any]
"""Takes an option's name and text; raises `UsageError`."""
Values = dict[str, Any]
"""Values by option name, with underscores. None for an option that was not given and has no default."""


@dataclass(frozen=True)
class Option:
    """One option, or operand."""

    name: str
    """Begins with `--` for an option, not for an operand."""
    metavar: str
    read: Read | None
    """None: a flag, which has no value."""
    help: str
    default: str | None = None
    many: bool = False
    """May be given several times. The value is then a list with the result of `read` for each."""
    optional: bool = False
    """An operand that may be left out. The value is then None."""


JSON = Option("--json", "", None, "print JSON, a line for each object")


def add(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    for option in options:
        if option.read is None:
            parser.add_argument(option.name, action="store_true", help=option.help)
            continue
        told = option.help + (f" (default {option.default})" if option.default else "")
        if option.name.startswith("-"):
            parser.add_argument(
                option.name,
                metavar=option.metavar,
                type=partial(option.read, option.name),
                default=[] if option.many else option.default,
                action="append" if option.many else "store",
                help=told,
            )
        else:
            read = partial(option.read, option.metavar)
            nargs = "?" if option.optional else "+" if option.many else None
            parser.add_argument(option.name, metavar=option.metavar, type=read, nargs=nargs, help=told)


def count(least: int = 1, most: int = 10**12) -> Read:
    """A whole number."""
    return partial(values.count, least=least, most=most)


def number(least: float = 0.0, most: float = 1e18, *, above: bool = False) -> Read:
    """A number. With `above`, `least` itself is too small."""
    return partial(values.number, least=least, most=most, above=above)


def choice(*choices: str) -> Read:
    """One of a few words."""
    return partial(values.choice, choices=choices)


def as_text(option: str, text: str) -> str:
    """Text that is not empty. The code that uses it parses it."""
    if not text:
        raise UsageError(f"{option} '': a value is wanted")
    return text


def as_path(option: str, text: str) -> Path:
    """A file or folder of this machine."""
    if not text or "://" in text:
        raise UsageError(f"{option} {text!r}: a path on this machine is wanted")
    return Path(text)


def new_file(option: str, text: str) -> Path:
    """A file that can be written later: its folder exists, and it is no folder itself."""
    path = as_path(option, text)
    if path.is_dir():
        raise UsageError(f"{option} {text!r}: a file is wanted, not a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {text!r}: there is no folder {path.absolute().parent}")
    return path


def seconds(option: str, text: str) -> float:
    """A time, which may be 0."""
    return 0.0 if text in ("0", "0s") else values.seconds(option, text)


def refuse(found: Values, names: Sequence[str], why: str) -> None:
    """Raises `UsageError` if one of these options was given."""
    for name in names:
        if found[name.replace("-", "_")] is not None:
            raise UsageError(f"--{name}: {why}")
