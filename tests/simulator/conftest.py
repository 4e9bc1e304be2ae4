"""`atoll simulate`, as a script asks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from atoll_cli.__main__ import main


@pytest.fixture(name="ask")
def ask_fixture(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Takes the arguments of `atoll simulate`; gives the objects that it prints."""

    def ask(*arguments: object) -> list[dict[str, Any]]:
        assert main(["simulate", *map(str, arguments), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


@pytest.fixture(name="refused")
def refused_fixture(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Takes the arguments of `atoll simulate` that it refuses; gives the only line that it prints."""

    def refused(*arguments: object, status: int = 2) -> str:
        assert main(["simulate", *map(str, arguments)]) == status
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1
        return told.err

    return refused
