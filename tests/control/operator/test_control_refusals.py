"""The API server itself refuses what cannot work, with a message that names the field and says what would be right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from apiserver import Api, Refusal
from refusals import Row, rows

pytestmark = pytest.mark.control
DRY = "?dryRun=All&fieldValidation=Strict"


def judge(api: Api, row: Row) -> str:
    """The refusal of the API server; empty if it accepts the object, or the change of the existing object."""
    kind = row.body["kind"]
    try:
        if row.before is None:
            api.create(row.body, "default", DRY)
        else:
            path = api.path(kind, "default", existing(row)) + DRY
            api.call("PATCH", path, {"spec": row.body["spec"]}, "application/merge-patch+json")
    except Refusal as refusal:
        return str(refusal)
    return ""


def existing(row: Row) -> str:
    """Name of the object that the row changes: one for all rows that begin alike."""
    return f"e{sum(json.dumps(row.before).encode())}"


@pytest.fixture
def objects(api: Api) -> Iterator[None]:
    """What the changes of the table begin with."""
    changes = (*rows("refused_changes"), *rows("taken_changes"))
    begun = {existing(row): row.before for row in changes if row.before}
    for name, body in begun.items():
        api.create({**body, "metadata": {"name": name}}, "default")
    yield
    for name, body in begun.items():
        api.delete(body["kind"], "default", name)


def test_the_api_server_judges_every_row_as_the_table_says(api: Api, objects: None) -> None:
    sections = ("refused", "refused_changes", "taken", "taken_changes", "refused_in_pods")
    table = [(row, section) for section in sections for row in rows(section)]
    with ThreadPoolExecutor(8) as pool:
        verdicts = pool.map(lambda each: judge(api, each[0]), table)
    wrong = [
        f"{row}: {message!r}"
        for (row, section), message in zip(table, verdicts, strict=True)
        if (message and not section.startswith("refused"))
        or (section in ("refused", "refused_changes") and not (row.field in message and row.says in message))
        or (section == "refused_in_pods" and message)
    ]
    assert not wrong, "\n".join(wrong)
