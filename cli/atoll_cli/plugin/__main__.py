"""Entry points of `kubectl-atoll` and of its completion."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atoll_cli import __main__ as atoll


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the plugin. The exit status is as for `atoll`."""
    return atoll.main(arguments, commands="atoll_cli.plugin.options")


def complete() -> int:
    """Print what may follow the words given as arguments; kubectl 1.26 or newer calls this for every shell."""
    return atoll.main(None, commands="atoll_cli.plugin.completion")


if __name__ == "__main__":
    sys.exit(main())
