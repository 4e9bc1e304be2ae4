"""`atoll simulate plan`."""

from __future__ import annotations

import argparse

from atoll_cli.errors import CommandError
from atoll_cli.simulate.output import add_output_options


def add_options(question: argparse.ArgumentParser) -> None:
    """Of this question."""
    add_output_options(question)


def run(options: argparse.Namespace) -> int:
    """Not there yet: this file's owner writes it (issue 7)."""
    raise CommandError("simulate plan: not built yet")
