"""`python -m atoll_local up|down|status|link|images|programs|helm …|kubectl …|actionlint …`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time

from atoll_local.catalogue import PROGRAMS
from atoll_local.cluster import Cluster
from atoll_local.errors import ClusterError, HostError, StateError
from atoll_local.host import install
from atoll_local.images import build_images
from atoll_local.link import Link, parse_delay, parse_rate, shape
from atoll_local.paths import claim
from atoll_local.programs import find, find_all

PASSED_ON = ("helm", "kubectl", "actionlint")
"""Programs that this command runs with unchanged arguments."""


STARTED = time.monotonic()


def _say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.0f} s] {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m atoll_local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("up", "start a cluster"), ("down", "remove it"), ("status", "what runs, as JSON")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--name", default="atoll")
    link = commands.add_parser(
        "link", help="limit, delay or cut the link of a node; without options restore it"
    )
    link._negative_number_matcher = re.compile(r"-\.?\d")  # -1mbit is a value too, to be refused as such
    link.add_argument("node", metavar="NODE")
    link.add_argument("--name", default="atoll", help="of the cluster")
    link.add_argument("--rate", type=parse_rate, help="in each direction, such as 40mbit")
    link.add_argument(
        "--delay", type=parse_delay, default=0.0, help="that it adds in each direction, such as 60ms"
    )
    link.add_argument("--cut", action="store_true", help="drop all that the node sends and receives")
    commands.add_parser("programs", help="find or build every program")
    images = commands.add_parser("images", help="build the images")
    images.add_argument("--force", action="store_true", help="build them again from nothing")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0 done; 1 the cluster failed or cannot be changed; 2 wrong machine or arguments; 130
    interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in PASSED_ON:
            program = str(find(given[0], _say))
            os.execv(program, [program, *given[1:]])
        return _run(_parser().parse_args(given))
    except (ClusterError, StateError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except HostError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: `down` removes what is left of a cluster", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.command == "programs":
        for name, path in find_all(tuple(PROGRAMS), _say).items():
            print(f"{name:25} {path}")
    elif options.command == "images":
        install(_say)
        build_images(_say, force=options.force)
    elif options.command == "up":
        cluster = Cluster(options.name, _say)
        with claim():
            cluster.up()
        print(f"export KUBECONFIG={cluster.kubeconfig}")
    elif options.command == "down":
        cluster = Cluster(options.name, _say)
        with claim():
            found = cluster.down()
        _say(f"cluster {options.name} is gone" if found else f"there is no cluster called {options.name}")
    elif options.command == "link":
        machine = Cluster(options.name).machine(options.node)
        shape(machine, Link(rate=options.rate, delay=options.delay, cut=options.cut))
    elif options.command == "status":
        print(json.dumps(Cluster(options.name).status(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
