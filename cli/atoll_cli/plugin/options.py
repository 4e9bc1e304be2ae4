"""The commands of `kubectl atoll` and their options, which follow kubectl's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from atoll_cli.arguments import JSON, Parser
from atoll_cli.arguments import add as add_arguments
from atoll_cli.formats import add_cluster, add_ledger, add_status
from atoll_cli.options import run
from atoll_cli.replay import OPTIONS as REPLAY
from atoll_cli.simulate import plan as simulate_plan

CHANGES = {
    "suspend": ("RUN", "release every chip; a checkpoint and the journal stay"),
    "resume": ("RUN", "continue a suspended run at its step"),
    "scale": ("RUN", "set the number of units of all pools together"),
    "checkpoint": ("RUN", "save a global checkpoint now"),
    "heal": ("UNIT", "restart the unit's processes; its hosts stay"),
    "drain": (
        "UNIT",
        "move the unit: it ends between two steps and starts again on free hosts. Unlike kubectl drain this cordons "
        "no node: to keep the unit away from its nodes, run kubectl cordon first",
    ),
}
"""Commands that change an object: what they take, and what they do."""
FILES = ("plan", "replay")
"""Commands that need no cluster. They are the same as in `atoll`."""


def execute(arguments: Sequence[str]) -> int:
    """Run the command. Raises `CommandError`."""
    return run(parser().parse_args(arguments))


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="kubectl atoll", description="Look at TrainingRuns and their units.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, what: str, function: str, extras: str = "") -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=what, description=what)
        command.set_defaults(function=function, extras=extras)
        return command

    add_status(add("status", "every run, or one and its units", "status.show_status"))
    add_status(add("top", "units by their tokens per second", "status.show_status"))
    add_ledger(add("ledger", "what became of every token of a run", "ledger.show_ledger"))
    logs = add("logs", "logs of a unit, of a run's syncer, or of the operator", "plugin.logs.run")
    add_cluster(logs)
    logs.add_argument("target", metavar="UNIT|syncer|operator")
    logs.add_argument("run", metavar="RUN", nargs="?", help="of a syncer; default: the only run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with the next incarnation")
    logs.add_argument("-p", "--previous", action="store_true", help="of the process before the present one")
    logs.add_argument("--all-hosts", action="store_true", help="of every host; default: of host 0")
    logs.add_argument("--tail", type=int, default=-1, metavar="LINES", help="default: all")
    for name, (kind, what) in CHANGES.items():
        change = add(name, what, "plugin.change.run")
        add_cluster(change)
        change.add_argument("name", metavar=kind)
        change.add_argument("-o", "--output", choices=("json", "yaml", "name"), help="default: one sentence")
        if name == "scale":
            change.add_argument("--units", "--replicas", type=int, required=True, metavar="N")
    what = "what to expect of a TrainingRun, and what would do better"
    plan = add("plan", what, "simulate.run_simulate", "simulate")
    plan.set_defaults(command="simulate", question="plan")
    add_arguments(plan, (*simulate_plan.OPTIONS, JSON))
    replay = add("replay", "re-run a recorded syncer, bit for bit", "replay.run_replay", "runtime")
    add_arguments(replay, REPLAY)
    for command in (plan, replay):
        command.add_argument("-o", "--output", choices=("json",), dest="json", help="the same as --json")
    return top
