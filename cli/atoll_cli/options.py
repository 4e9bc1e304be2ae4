"""The commands of `atoll` and their options. Each imports what it needs when it is called."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from atoll_cli.data import add_options as add_data_options
from atoll_cli.errors import lacking
from atoll_cli.export import add_options as add_export_options
from atoll_cli.replay import add_options as add_replay_options
from atoll_cli.simulate import add_options as add_simulate_options


def execute(arguments: Sequence[str]) -> int:
    """Run the command. Raises `CommandError`."""
    if arguments[:1] == ["bench"]:
        from atoll_bench.command import main

        return main(arguments[1:])
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Run any command but `bench`, which has its own parser."""
    if options.command == "demo":
        return _demo(options)
    if options.command == "try":
        return _try(options)
    if options.command == "status":
        from atoll_cli.status import show_status

        return show_status(options)
    if options.command == "ledger":
        from atoll_cli.ledger import show_ledger

        return show_ledger(options)
    if options.command == "replay":
        from atoll_cli.replay import run_replay

        return run_replay(options)
    if options.command == "data":
        from atoll_cli.data import run_data

        return run_data(options)
    if options.command == "export":
        from atoll_cli.export import run_export

        return run_export(options)
    if options.command == "simulate":
        from atoll_cli.simulate import run_simulate

        return run_simulate(options)
    print(_version())
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from atoll_cli.demo.command import run_demo

        return run_demo(options)
    except ModuleNotFoundError as error:
        raise lacking(
            error, "demo needs the packages of local cluster and runtime", "local,runtime"
        ) from error


def _try(options: argparse.Namespace) -> int:
    try:
        from atoll_cli.trial.command import run_try

        return run_try(options)
    except ModuleNotFoundError as error:
        raise lacking(
            error, "try needs the packages of runtime and local cluster", "runtime,local"
        ) from error


def _version() -> str:
    from importlib.metadata import version

    return f"atoll {version('atoll')}"


class _Version(argparse.Action):
    """Reads the version only when it is needed, because that takes longer than defining all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(_version())
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The parser with all commands and options."""
    top = argparse.ArgumentParser(
        prog="atoll", description="Train one model on many TPU islands.", allow_abbrev=False
    )
    top.add_argument("--version", action=_Version, nargs=0, help="the version of this program")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_try(
        commands.add_parser(
            "try", help="train with processes of this machine, kill one, watch it heal", allow_abbrev=False
        )
    )
    _add_demo(
        commands.add_parser(
            "demo", help="train on a local cluster, kill a unit, watch it heal", allow_abbrev=False
        )
    )
    _add_status(
        commands.add_parser("status", help="every run, or one and its units, readable", allow_abbrev=False)
    )
    ledger = commands.add_parser("ledger", help="what became of every token of a run", allow_abbrev=False)
    ledger.add_argument("run", metavar="RUN")
    ledger.add_argument("-n", "--namespace", metavar="NS", help="default: the context's")
    ledger.add_argument("--context", metavar="NAME", help="default: the current one")
    ledger.add_argument("--json", action="store_true", help="exact, in token-fragments, as JSON")
    add_replay_options(
        commands.add_parser("replay", help="re-run a recorded syncer, bit for bit", allow_abbrev=False)
    )
    add_data_options(
        commands.add_parser("data", help="make a data set, check it, look into it", allow_abbrev=False)
    )
    add_export_options(
        commands.add_parser("export", help="a checkpoint as safetensors, for other tools", allow_abbrev=False)
    )
    commands.add_parser("bench", help="measure this machine")
    add_simulate_options(
        commands.add_parser("simulate", help="what to expect before renting chips", allow_abbrev=False)
    )
    commands.add_parser("version", help="the version of this program", allow_abbrev=False)
    return top


def _add_status(status: argparse.ArgumentParser) -> None:
    status.add_argument("run", metavar="RUN", nargs="?", help="default: every run, a line each")
    where = status.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", metavar="NS", help="default: the context's")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="the runs of every namespace")
    status.add_argument("--context", metavar="NAME", help="default: the current one")
    status.add_argument("-w", "--watch", action="store_true", help="again every 2 s until the run has ended")
    status.add_argument("--json", action="store_true", help="as JSON; with --watch a line each time")


def _add_try(trial: argparse.ArgumentParser) -> None:
    trial.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="RUN.yaml",
        help="with file:// paths; default: a run that is built in",
    )
    trial.add_argument("--json", action="store_true", help="print the summary alone, as JSON")
    trial.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep logs, data and checkpoints there; it must not exist"
    )
    trial.add_argument("--steps", type=int, metavar="N", help="global steps, instead of the file's target")


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--json", type=Path, metavar="PATH", help="write the summary there")
    demo.add_argument(
        "--record", type=Path, metavar="PATH", help="write each observation there, a JSON line each"
    )
    demo.add_argument("--keep", action="store_true", help="leave the cluster up and say how to reach it")
    demo.add_argument(
        "--delete-pod", action="store_true", help="delete one pod of that unit too, before the kill"
    )
    demo.add_argument(
        "--lose-node", action="store_true", help="cut the power of another unit's node too, before the kill"
    )
    demo.add_argument("--kill-syncer", action="store_true", help="kill the syncer too, after the heal")
    demo.add_argument("--seed", type=int, metavar="N", help="seed of model and data; default: the sample's")
    demo.add_argument(
        "--margin",
        default="1",
        metavar="NATS",
        help="least gain on held-out text per token; default %(default)s",
    )
    demo.add_argument("--name", default="atoll", help="name of the local cluster (default %(default)s)")
