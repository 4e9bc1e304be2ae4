"""CEL rules beside the fields that they check. The generator of the CRDs writes them as `x-kubernetes-validations`.

A rule may name constants in capitals, such as `MACHINES` or `NAMES_LIMIT`: `atoll_cli.simulate.schema` lists them, and
the generator puts their values in. `FIELD` in a rule is the path that its error names.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import ConfigDict, Field

Rule: TypeAlias = dict[str, str]
KEY = "x-kubernetes-validations"


def rule(expression: str, message: str, field: str = "", *, says: str = "") -> Rule:
    """A rule for `cel` or `checked`.

    Args:
        message: what would be right. The API server puts the path in front, and the value where the rule stands at a
            string or a number.
        field: path below the place of the rule that the API server's error names.
        says: CEL expression of a message that shows values; `message` is for API servers that cannot evaluate it.
    """
    found = {"rule": expression.replace("FIELD", field), "message": message}
    if says:
        found["messageExpression"] = says
    if field:
        found["fieldPath"] = f".{field}"
    return found


def cel(*rules: Rule) -> Any:
    """For `Annotated`: rules of a field."""
    return Field(json_schema_extra=_extra(rules))


def checked(*rules: Rule) -> ConfigDict:
    """`model_config`: rules of an object."""
    return ConfigDict(json_schema_extra=_extra(rules))


def _extra(rules: tuple[Rule, ...]) -> dict[str, Any]:
    return {KEY: list(rules)}


def immutable(reason: str) -> Rule:
    """For a field that is always there."""
    return rule("self == oldSelf", f"cannot be changed: {reason}")


def immutable_field(field: str, reason: str, default: str = "''") -> Rule:
    """For the object around a field that may be absent; `default` is the CEL literal that absence means."""
    same = "(has(self.FIELD) ? self.FIELD : ABSENT) == (has(oldSelf.FIELD) ? oldSelf.FIELD : ABSENT)"
    return rule(same.replace("ABSENT", default), f"cannot be changed: {reason}", field)


WHOLE = rule("self == self", "must be a whole number without a decimal point")
"""For a number that rules of an outer object read. A schema accepts 3.0 as an integer and CEL does not: the rule of the
outer object then fails without naming the field. This one names it."""
