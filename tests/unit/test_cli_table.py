"""One table of all commands of `atoll` and `kubectl atoll`: help, JSON, and how each one fails."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from played_kubectl import Call

from atoll_bench.command import FIGURES
from atoll_cli.options import parser
from atoll_cli.plugin.options import parser as plugin_parser

PLAN = str(Path(__file__).resolve().parents[2] / "manifests" / "samples" / "minimal.yaml")
REFUSAL = 'Error from server (Forbidden): trainingruns.atoll.dev is forbidden: User "u" cannot get resource'


class Row(NamedTuple):
    """The arguments of one command."""

    operands: str
    """Operands with which it works; empty if it needs none or has its own test."""
    json: str = ""
    """The option for output in JSON."""
    missing: str = ""
    """Operands that name what does not exist. A command for a cluster is called with `operands` on an empty cluster."""


PLUGIN = {
    "status": Row("trun/r", "-o json"),
    "top": Row("r", "-o json"),
    "ledger": Row("r", "-o json"),
    "logs": Row("lu/r-a-0"),
    "suspend": Row("r", "-o json"),
    "resume": Row("r", "-o json"),
    "scale": Row("r --units 4", "-o json"),
    "checkpoint": Row("r", "-o json"),
    "heal": Row("r-a-0", "-o json"),
    "drain": Row("r-a-0", "-o json"),
    "plan": Row(PLAN, "-o json", "/none.yaml"),
    "replay": Row("", "-o json", "/none"),
}
"""Commands of `kubectl atoll`. As with kubectl, only logs have no JSON."""
SIMULATIONS = ("goodput", "bandwidth", "heterogeneity", "links", "scavenge")
ATOLL = {
    "try": Row("", "--json", "/none.yaml"),
    "demo": Row("", "--json", "--json /none/file"),
    "status": Row("r", "--json"),
    "ledger": Row("r", "--json"),
    "replay": Row("", "--json", "/none"),
    "data import": Row("", "--json", "file:///none/new /none --tokenizer bytes"),
    "data check": Row("", "--json", "file:///none"),
    "data show": Row("", "", "file:///none"),
    "export": Row("", "--json", "file:///none --out DIR/x"),
    "simulate plan": Row("", "--json", "/none.yaml"),
    **{f"simulate {name}": Row("", "--json") for name in SIMULATIONS},
    **{f"bench {name}": Row("", "--json") for name in FIGURES},
    "version": Row(""),
}
"""Commands of `atoll`. `data show` prints only text of the data set. Plans as JSON: tests/simulator."""
ROWS = [("atoll_cli.plugin.options", *item) for item in PLUGIN.items()]
ROWS += [("atoll_cli.options", *item) for item in ATOLL.items()]
IDS = [("kubectl atoll " if "plugin" in commands else "atoll ") + name for commands, name, _ in ROWS]
EVERY = pytest.mark.parametrize(("commands", "name", "row"), ROWS, ids=IDS)
OF_A_CLUSTER = {"status", "ledger", *(name for name, row in PLUGIN.items() if not row.missing)}


def leaves(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Names of the commands without subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for name, command in (item for action in below for item in action.choices.items()):
        yield from leaves(command, f"{before}{name} ")
    if not below:
        yield before.strip()


def test_the_table_has_every_command() -> None:
    assert set(leaves(plugin_parser())) == set(PLUGIN)
    assert set(leaves(parser())) - {"bench"} == {name for name in ATOLL if not name.startswith("bench ")}


@EVERY
def test_help_names_the_command_and_its_options_and_an_unknown_option_is_a_line_that_names_it(
    call: Call, commands: str, name: str, row: Row
) -> None:
    status, out, err = call(*name.split(), "--help", commands=commands)
    assert (status, err) == (0, "") and f"{name.split()[-1]} [" in " ".join(out.split())
    assert (row.json.split() or [""])[0] in out and bool(row.json) == ("json" in out.lower())
    status, out, err = call(*name.split(), *row.operands.split(), "--nonsense", commands=commands)
    assert (status, out, err.count("\n")) == (2, "", 1) and err.endswith(f"{name} --help\n")


@EVERY
def test_what_is_missing_is_told_in_one_sentence(
    call: Call, kubectl: Path, commands: str, name: str, row: Row
) -> None:
    words = name.split()
    if name in OF_A_CLUSTER:
        words += row.operands.split()
        status, out, err = call(*words, "-n", "ml", "--context", "prod", commands=commands)
        assert status == 0 and out.strip() and not err
        calls = (kubectl / "calls").read_text().splitlines()
        assert calls and all("--context=prod" in each for each in map(json.loads, calls))
        (kubectl / "refusal").write_text(REFUSAL)
        status, out, err = call(*words, commands=commands)
        assert (status, out, err.count("\n")) == (1, "", 1) and REFUSAL in err
        (kubectl / "refusal").write_text("")
        (kubectl / "objects").write_text("[]")
        status, out, err = call(*words, commands=commands)
        assert (status, out, err.count("\n")) == (1, "", 1)
    elif row.missing:
        status, out, err = call(*words, *row.missing.replace("DIR", str(kubectl)).split(), commands=commands)
        assert (status, out, err.count("\n")) == (2, "", 1) and "none" in err


@EVERY
def test_json_is_one_document(call: Call, commands: str, name: str, row: Row) -> None:
    words = [*name.split(), *row.operands.split()]
    if row.operands and row.json:
        status, out, _ = call(*words, *row.json.split(), commands=commands)
        assert status == 0 and isinstance(json.loads(out), dict)
    if row.operands and row.json == "-o json" and not row.missing:
        status, out, _ = call(*words, "-o", "yaml", commands=commands)
        assert status == 0 and isinstance(yaml.safe_load(out), dict)


def test_the_runs_of_an_empty_cluster_are_no_error(call: Call, kubectl: Path) -> None:
    (kubectl / "objects").write_text("[]")
    assert call("status", "-A") == (0, "there is no TrainingRun\n", "")
