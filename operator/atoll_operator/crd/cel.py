"""CEL rules as a schema has them (`x-kubernetes-validations`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    return {
        **rule(expression, f"{field}: {message}", field),
        "messageExpression": f"'{field} ' + self.{field} + ': {_escaped(message)}'",
    }


def explained(expression: str, field: str, message: str, key: str, words: Mapping[str, str]) -> Rule:
    """Such a rule whose message has the words for `key`, an expression; `message` stands for what has none."""
    told = valued(expression, field, "")["messageExpression"]
    return {**valued(expression, field, message), "messageExpression": f"{told} + {table(words)}[{key}]"}


def fixed(name: str, message: str, default: str | int | None = None) -> Rule:
    """A field that may be absent, and then stays so, or is the same as one of its default."""
    if default is None:
        same = (
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        )
    else:
        same = f"{given('self', name, default)} == {given('oldSelf', name, default)}"
    return rule(same, message, name)


def kept(message: str) -> Rule:
    """Of a field that is always there, and stays as it is. A rule of the field itself costs the API server next to
    nothing; one that reads the field from outside costs what `poolrules.slice_rules` says, twice."""
    return rule("self == oldSelf", message)


def whole() -> Rule:
    """Of a number that rules of an outer object read. 3.0 is an integer to the schema and none to CEL: such a rule
    fails then, and names its own place. This one fails too, and names the field."""
    return rule("self == self", "must be a whole number without a decimal point")


def given(place: str, name: str, default: str | int) -> str:
    """The value of a field of a list's item, which the API server does not fill in."""
    return f"(has({place}.{name}) ? {place}.{name} : {default!r})"


def quoted(names: Iterable[str]) -> str:
    """A list of strings."""
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def table(words: Mapping[str, str]) -> str:
    """A map of strings to strings."""
    return "{" + ", ".join(f"'{key}': '{_escaped(text)}'" for key, text in words.items()) + "}"


def lists(names: Mapping[str, Iterable[str]]) -> str:
    """A map of strings to lists of strings."""
    return "{" + ", ".join(f"'{key}': {quoted(some)}" for key, some in names.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("'", "\\'")
