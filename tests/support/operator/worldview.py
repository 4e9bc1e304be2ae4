"""How what was found differs from what is expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            if key not in found:
                yield f"{path}/{key} is missing"
            elif key not in expected:
                yield f"{path}/{key} is too much"
            else:
                yield from differences(expected[key], found[key], f"{path}/{key}")
    elif expected != found:
        yield f"{path} is {found!r}, not {expected!r}"
