"""CEL rules as a schema has them (`x-kubernetes-validations`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Rule = dict[str, Any]


def rule(expression: str, message: str, field: str = "") -> Rule:
    """A CEL rule; `field` is the path, relative to the rule's place, that the API server's message names."""
    result: Rule = {"rule": expression, "message": message}
    if field:
        result["fieldPath"] = f".{field}"
    return result


def valued(expression: str, field: str, message: str) -> Rule:
    """A CEL rule whose message has the value of a string field; the API server cannot bound the cost of others."""
    text = message.replace("'", "\\'")
    return {
        **rule(expression, f"{field}: {message}", field),
        "messageExpression": f"'{field} ' + self.{field} + ': {text}'",
    }


def fixed(name: str, message: str, default: str | int | None = None) -> Rule:
    """A field that may be absent, and then stays so, or is the same as one of its default."""
    if default is None:
        same = (
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        )
    else:
        same = f"{given('self', name, default)} == {given('oldSelf', name, default)}"
    return rule(same, message, name)


def given(place: str, name: str, default: str | int) -> str:
    """The value of a field of a list's item, which the API server does not fill in."""
    return f"(has({place}.{name}) ? {place}.{name} : {default!r})"


def quoted(names: Iterable[str]) -> str:
    """A list of strings."""
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"
