"""`atoll status RUN`: a run and its units, from the custom resources alone."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.kubectl import Kubectl
from atoll_cli.text import headline, heals, held_out, unit_table
from atoll_cli.views import sample_of

INTERVAL = 2.0
"""Seconds between two looks with --watch."""


def show_status(options: argparse.Namespace) -> int:
    """Prints the run once, or again and again until it has ended.

    Raises:
        CommandError: there is no such run, or the cluster did not answer.
    """
    kubectl = Kubectl(program=find_kubectl(), context=options.context)
    where = ["-n", options.namespace] if options.namespace else []
    while True:
        listing = kubectl.get("trainingruns,learnerunits", *where)
        sample = sample_of(options.run, listing["items"], time.time())
        if sample.run.phase == "Missing":
            raise CommandError(f"no TrainingRun is called {options.run!r} in this namespace")
        print(f"{options.run}: {headline(sample.run)}")
        if sample.run.message:
            print(sample.run.message)
        if sample.run.checkpoint_step is not None:
            print(
                f"newest checkpoint: global step {sample.run.checkpoint_step} {sample.run.final_checkpoint}".rstrip()
            )
        if sample.run.held_out is not None:
            print(held_out(sample.run.held_out))
        print(unit_table(sample))
        print("".join(f"{line}\n" for line in heals(sample)), end="", flush=True)
        if not options.watch or sample.run.complete or sample.run.failed:
            return 0
        time.sleep(INTERVAL)
        print()


def find_kubectl() -> Path:
    from atoll_local.errors import HostError
    from atoll_local.programs import find

    try:
        return find("kubectl")
    except HostError as error:
        raise UsageError(str(error)) from error
