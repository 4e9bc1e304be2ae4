"""How a bench's figures are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

F = TypeVar("F", bound="DataclassInstance")


def tell(name: str, found: Iterable[F], show: Callable[[list[F]], str], *, as_json: bool) -> None:
    """A JSON line for each figure as soon as it is there, or a table when all are."""
    from atoll_bench.figures import line

    figures = []
    for figure in found:
        figures.append(figure)
        if as_json:
            print(line(name, asdict(figure)), flush=True)
    if not as_json:
        print(show(figures))
