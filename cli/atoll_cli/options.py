"""The commands of `atoll` and their options. Each command imports what it needs when it is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from atoll_cli.arguments import Option, Parser, add, as_path, count, new_file
from atoll_cli.data import add_options as add_data_options
from atoll_cli.errors import lacking
from atoll_cli.export import OPTIONS as EXPORT
from atoll_cli.formats import add_ledger, add_status
from atoll_cli.replay import OPTIONS as REPLAY
from atoll_cli.simulate import add_options as add_simulate_options

TRY = (
    Option("file", "RUN.yaml", as_path, "with file:// paths; default: a run that is built in", optional=True),
    Option("--json", "", None, "print the summary alone, as JSON"),
    Option("--folder", "DIR", as_path, "keep logs, data and checkpoints there; it must not exist"),
    Option("--steps", "N", count(2), "global steps, instead of the file's target"),
)
DEMO = (
    Option("--json", "PATH", new_file, "write the summary there"),
    Option("--record", "PATH", new_file, "write each observation there, a JSON line each"),
    Option("--keep", "", None, "leave the cluster up and say how to reach it"),
    Option("--delete-pod", "", None, "delete one pod of that unit too, before the kill"),
    Option("--lose-node", "", None, "cut the power of another unit's node too, before the kill"),
    Option("--cut-link", "", None, "cut the link of a third unit's node for a minute too, before the kill"),
    Option("--kill-syncer", "", None, "kill the syncer too, after the heal"),
    Option("--name", "NAME", lambda _, name: name, "name of the local cluster", "atoll"),
)


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], str, str]] = {
    "try": ("train with processes of this machine, kill one, watch it heal",
            partial(add, options=TRY), "trial.command.run_try", "runtime,local"),
    "demo": ("train on a local cluster, kill a unit, watch it heal",
             partial(add, options=DEMO), "demo.command.run_demo", "local,runtime"),
    "status": ("every run, or one and its units, readable", add_status, "status.show_status", ""),
    "ledger": ("what became of every token of a run", add_ledger, "ledger.show_ledger", ""),
    "replay": ("re-run a recorded syncer, bit for bit",
               partial(add, options=REPLAY), "replay.run_replay", "runtime"),
    "data": ("make a data set, check it, look into it", add_data_options, "data.run_data", "runtime,data"),
    "export": ("a checkpoint as safetensors, for other tools",
               partial(add, options=EXPORT), "export.run_export", "runtime,export,data"),
    "simulate": ("what to expect before renting chips", add_simulate_options, "simulate.run_simulate", "simulate"),
    "version": ("the version of this program", lambda _: None, "options.show_version", ""),
}  # fmt: skip
"""What each command does, what adds its options, its function in this package, and the extras of pyproject.toml that it
needs."""


def execute(arguments: Sequence[str]) -> int:
    """Run the command. Raises `CommandError`."""
    if arguments[:1] == ["bench"]:
        from atoll_bench.command import main

        return main(arguments[1:])
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Run any command but `bench`, which has its own parser."""
    module, _, function = options.function.rpartition(".")
    try:
        status: int = getattr(import_module(f"atoll_cli.{module}"), function)(options)
    except ImportError as error:
        raise lacking(error, options.command, options.extras) from error
    return status


def show_version(_: argparse.Namespace) -> int:
    from importlib.metadata import version

    print(f"atoll {version('atoll')}")
    return 0


class _Version(argparse.Action):
    """Reads the version only when it is needed, because that takes longer than defining all options."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        parser.exit(show_version(namespace))


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="atoll", description="Train one model on many TPU islands.")
    top.add_argument("--version", action=_Version, nargs=0, help="the version of this program")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, add_options, function, extras) in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        add_options(command)
        command.set_defaults(function=function, extras=extras)
    commands.add_parser("bench", help="measure this machine")
    return top
