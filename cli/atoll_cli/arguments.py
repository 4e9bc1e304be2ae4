"""A command's arguments as a table. One function reads and checks each argument. Its error names the option, the value
and what is expected."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from atoll_cli.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_557_600.0}
PREFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

T = TypeVar("T")
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


class Parser(argparse.ArgumentParser):
    """Raises `UsageError`, which is one line, where argparse prints the usage and exits. Takes no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._negative_number_matcher = re.compile(
            r"-\.?\d"
        )  # -1d and -1,2 are values too, to be refused as such

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        found, unknown = super().parse_known_args(*given, **named)
        if unknown:  # those of a subcommand, which argparse leaves to the parser above it
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


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


def count(least: int = 1, most: int = 10**12) -> Callable[[str, str], int]:
    """A whole number such as `8`, `150k`, `1.2M`."""

    def read(option: str, text: str) -> int:
        value = _scaled(text, PREFIXES)
        if not least <= value <= most or value != int(value):
            raise UsageError(f"{option} {text!r}: a whole number from {least} to {most} is wanted")
        return int(value)

    return read


def number(least: float = 0.0, most: float = 1e18, *, above: bool = False) -> Callable[[str, str], float]:
    """A number such as `0.95`, `5B`. With `above`, `least` itself is too small."""
    return _within(least, most, above, "a number {} is wanted", PREFIXES)


def several(read: Callable[[str, str], T]) -> Callable[[str, str], list[T]]:
    """Several values, separated by commas."""
    return lambda option, text: [read(option, part.strip()) for part in text.split(",")]


def seconds(most: float = 1e12, *, least: float = 0.0, zero: bool = False) -> Callable[[str, str], float]:
    """A time above 0 such as `90s`, `15m`, `12h`, `7d`, `1y`; a bare number is seconds. With `zero` it may be 0."""
    wanted = "a time {} is wanted, such as 90s, 15m, 12h, 7d or 1y"
    return _within(least, most, not (least or zero), wanted, UNITS, "s")


def choice(*choices: str) -> Read:
    """One of a few words."""

    def read(option: str, text: str) -> str:
        if text not in choices:
            raise UsageError(f"{option} {text!r}: one of {', '.join(choices)} is wanted")
        return text

    return read


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


def bucket_uri(argument: str, text: str) -> str:
    """`gs://bucket/…` or `file:///absolute/path`; raises `UsageError`."""
    wanted = "gs://bucket/path or file:///absolute/path is wanted"
    scheme, separator, rest = text.partition("://")
    if not separator:
        hint = f", such as file://{Path(text).absolute()}" if text.strip() else ""
        raise UsageError(f"{argument} {text!r}: {wanted}{hint}")
    if scheme == "file" and not rest.startswith("/"):
        raise UsageError(f"{argument} {text!r}: file:///absolute/path is wanted, with three slashes")
    if scheme not in ("gs", "file") or not rest.strip("/"):
        raise UsageError(f"{argument} {text!r}: {wanted}")
    return text


def refuse(found: Values, names: Sequence[str], why: str) -> None:
    """Raises `UsageError` if one of these options was given."""
    for name in names:
        if found[name.replace("-", "_")] is not None:
            raise UsageError(f"--{name}: {why}")


def _within(
    least: float, most: float, above: bool, wanted: str, factors: Mapping[str, float], unit: str = ""
) -> Callable[[str, str], float]:
    """A number in a range, which the error tells without an exponent below 10¹⁵ in place of `{}`."""
    low, high = f"{least:.15g}", f"{most:.15g}{unit}"
    range_ = f"above {low} and at most {high}" if above else f"from {low}{unit} to {high}"

    def read(option: str, text: str) -> float:
        value = _scaled(text, factors)
        if not least <= value <= most or (above and value == least):
            raise UsageError(f"{option} {text!r}: {wanted.format(range_)}")
        return value

    return read


def _scaled(text: str, factors: Mapping[str, float]) -> float:
    """The number, times the factor of its last letter if that has one. NaN if it is none."""
    body, factor = (text[:-1], factors[text[-1]]) if text[-1:] in factors else (text, 1.0)
    try:
        return float(Decimal(body) * Decimal(factor))  # as floats, 4.1 times a million is no whole number
    except ArithmeticError:
        return math.nan
