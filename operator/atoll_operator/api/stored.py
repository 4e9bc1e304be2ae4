"""Stored objects that another version may have written: what this version knows of them, and what it does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from atoll_operator.api.group import Object

M = TypeVar("M", bound=BaseModel)
UNREADABLE = "unreadable"
"""Type of the validation errors of values that no version can use."""


def known(model: type[M], document: Object) -> tuple[M, dict[str, Any]]:
    """The document without the fields and values that `model` does not know, and those by their paths. No item of a
    list is left out. Raises ValidationError if something that `model` needs is missing or cannot be read."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return model.model_validate(document), unknown
        except ValidationError as error:
            found = error.errors(include_input=False)
            if any(each["type"] in ("missing", UNREADABLE) for each in found):
                raise
            path = max((_path(each["loc"], document) for each in found), key=len)
            holder: Any = copy.copy(document)
            document = holder
            for step in path[:-1]:  # what is beside the path may be large, and is shared
                holder[step] = copy.copy(holder[step])
                holder = holder[step]
            if not isinstance(holder, dict) or not path:
                raise
            unknown[".".join(map(str, path))] = holder.pop(path[-1])


def _path(loc: Sequence[int | str], document: Any) -> tuple[int | str, ...]:
    """The part of pydantic's path that the document has; the rest says what a value might have been."""
    for length, step in enumerate(loc):
        try:
            document = document[step]
        except (LookupError, TypeError):
            return tuple(loc[:length])
    return tuple(loc)


def dropped(sent: Any, stored: Any, path: str) -> Iterator[str]:
    """The fields, by their paths, that were sent and are not in what the API server stored: an older CRD lacks them."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        for name, value in sent.items():
            field = f"{path}.{name}"
            yield from dropped(value, stored[name], field) if name in stored else [field]
    elif isinstance(sent, list) and isinstance(stored, list):
        for value, other in zip(sent, stored, strict=False):
            yield from dropped(value, other, f"{path}[]")
