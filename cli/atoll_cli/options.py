"""The commands of `atoll` and their options. Each command imports what it needs when it is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from atoll_cli.arguments import Option, add, as_path, count, new_file
from atoll_cli.data import add_options as add_data_options
from atoll_cli.errors import lacking
from atoll_cli.export import OPTIONS as EXPORT
from atoll_cli.formats import add_ledger, add_status
from atoll_cli.replay import OPTIONS as REPLAY
from atoll_cli.simulate import add_options as add_simulate_options

COMMANDS = {
    "try": ("trial.command", "run_try", "runtime,local"),
    "demo": ("demo.command", "run_demo", "local,runtime"),
    "status": ("status", "show_status", ""),
    "ledger": ("ledger", "show_ledger", ""),
    "replay": ("replay", "run_replay", "runtime"),
    "data": ("data", "run_data", "runtime,data"),
    "export": ("export", "run_export", "runtime,export,data"),
    "simulate": ("simulate", "run_simulate", "simulate"),
    "version": ("options", "show_version", ""),
    # of the plugin alone
    "top": ("status", "show_status", ""),
    "logs": ("plugin.logs", "run", ""),
    **dict.fromkeys(
        ("suspend", "resume", "scale", "checkpoint", "heal", "drain"), ("plugin.change", "run", "")
    ),
}
"""Module and function of each command, and the extras of pyproject.toml that it needs."""

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


def execute(arguments: Sequence[str]) -> int:
    """Run the command. Raises `CommandError`."""
    if arguments[:1] == ["bench"]:
        from atoll_bench.command import main

        return main(arguments[1:])
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Run any command but `bench`, which has its own parser."""
    module, function, extras = COMMANDS[options.command]
    try:
        status: int = getattr(import_module(f"atoll_cli.{module}"), function)(options)
    except ImportError as error:
        raise lacking(error, options.command, extras) from error
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
    top = argparse.ArgumentParser(
        prog="atoll", description="Train one model on many TPU islands.", allow_abbrev=False
    )
    top.add_argument("--version", action=_Version, nargs=0, help="the version of this program")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    builders: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
        "try": (partial(add, options=TRY), "train with processes of this machine, kill one, watch it heal"),
        "demo": (partial(add, options=DEMO), "train on a local cluster, kill a unit, watch it heal"),
        "status": (add_status, "every run, or one and its units, readable"),
        "ledger": (add_ledger, "what became of every token of a run"),
        "replay": (partial(add, options=REPLAY), "re-run a recorded syncer, bit for bit"),
        "data": (add_data_options, "make a data set, check it, look into it"),
        "export": (partial(add, options=EXPORT), "a checkpoint as safetensors, for other tools"),
        "simulate": (add_simulate_options, "what to expect before renting chips"),
    }
    for name, (add_options, what) in builders.items():
        add_options(commands.add_parser(name, help=what, allow_abbrev=False))
    commands.add_parser("bench", help="measure this machine")
    commands.add_parser("version", help="the version of this program", allow_abbrev=False)
    return top
