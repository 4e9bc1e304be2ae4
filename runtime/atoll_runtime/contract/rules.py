"""CEL rules, defined next to the fields that they check. The CRD generator writes them as `x-kubernetes-validations`.

A rule may name constants in capitals, such as `MACHINES` or `NAMES_LIMIT`. `.ci/schema.py` lists them, and the
generator inserts their values. `FIELD` in a rule is the path that its error names.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import ConfigDict, Field

Rule: TypeAlias = dict[str, str]
KEY = "x-kubernetes-validations"


def rule(expression: str, message: str, field: str = "", *, says: str = "") -> Rule:
    """A rule for `cel` or `checked`.

    Args:
        message: what the value must be. The API server puts the path before it, and also the value if the rule is on a
            string or a number.
        field: path that the API server's error names, relative to the place of the rule.
        says: CEL expression for a message that shows values. API servers that cannot evaluate it use `message`.
    """
    found = {"rule": expression.replace("FIELD", field), "message": message}
    if says:
        found["messageExpression"] = says
    if field:
        found["fieldPath"] = f".{field}"
    return found


def cel(*rules: Rule) -> Any:
    """Rules of a field, for `Annotated`."""
    return Field(json_schema_extra=_extra(rules))


def checked(*rules: Rule) -> ConfigDict:
    """Rules of an object, for `model_config`."""
    return ConfigDict(json_schema_extra=_extra(rules))


def _extra(rules: tuple[Rule, ...]) -> dict[str, Any]:
    return {KEY: list(rules)}


def immutable(reason: str) -> Rule:
    """A rule for a field that is always present."""
    return rule("self == oldSelf", f"cannot be changed: {reason}")


def immutable_field(field: str, reason: str, default: str = "''") -> Rule:
    """A rule for the object around a field that may be absent. `default`: the CEL literal that absence means."""
    same = "(has(self.FIELD) ? self.FIELD : ABSENT) == (has(oldSelf.FIELD) ? oldSelf.FIELD : ABSENT)"
    return rule(same.replace("ABSENT", default), f"cannot be changed: {reason}", field)


WHOLE = rule("self == self", "must be a whole number without a decimal point")
"""A rule for a number that rules of an outer object read. A schema accepts 3.0 as an integer, but CEL does not. Then
the rule of the outer object fails without naming the field; this rule names it."""
