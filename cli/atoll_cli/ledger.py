"""`atoll ledger RUN`: what became of every token, read from the custom resources."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from atoll_cli.errors import CommandError
from atoll_cli.formats import RUN, named, tell
from atoll_cli.kubectl import chosen
from atoll_cli.text import camel_keys, table
from atoll_cli.views import LedgerView, ledgers_of

TOTAL = "total"
GONE = "gone"
"""Names of rows that are not units."""


def show_ledger(options: argparse.Namespace) -> int:
    """Print the ledger. Exit status 0 if it balances, else 1. Raises `CommandError`: there is no such run, it has no
    ledger yet, or the cluster did not answer."""
    name = named(RUN, options.run)
    items = chosen(options).get("trainingruns,learnerunits")["items"]
    names = [item["metadata"]["name"] for item in items if item["kind"] == "TrainingRun"]
    if name not in names:
        raise CommandError(f"no TrainingRun is called {name!r} in this namespace")
    ledgers = ledgers_of(name, items)
    run = ledgers.pop(name, None)
    if run is None:
        raise CommandError(f"{name!r} has no ledger yet: no unit has told its syncer of a token")
    wrong = {name: ledger for name, ledger in {**ledgers, name: run}.items() if ledger.balance}
    rest = gone(run, list(ledgers.values()))
    if options.output:
        tell(document(name, ledgers, rest, run, balanced=not wrong), options.output)
    else:
        print(ledger_table(ledgers, rest, run))
        for line in waiting(ledgers):
            print(line)
        print(verdict(wrong))
    return 1 if wrong else 0


def gone(run: LedgerView, units: Sequence[LedgerView]) -> LedgerView:
    """Return what the run's ledger has beyond the ledgers of its units.

    These are the tokens of deleted units. While the run trains, they include tokens that were reported between two
    writes, because run and units are written one after the other. A fate that has fewer tokens in the run, because
    they have another fate in its newer ledger, counts as 0. The result is empty if the units are newer.
    """
    if run.trained <= sum(unit.trained for unit in units):
        return LedgerView(fragments=run.fragments)
    merged, in_flight = (
        max(getattr(run, name) - sum(getattr(unit, name) for unit in units), 0)
        for name in ("merged", "in_flight")
    )
    discarded = Counter(run.discarded)
    for unit in units:
        discarded.subtract(unit.discarded)
    lost = {**+discarded}
    trained = merged + in_flight + sum(lost.values())
    return LedgerView(
        fragments=run.fragments, trained=trained, merged=merged, in_flight=in_flight, discarded=lost
    )


def ledger_table(ledgers: Mapping[str, LedgerView], rest: LedgerView, run: LedgerView) -> str:
    """A table in tokens: a line for each unit, one for deleted units (`gone`) if they have any, and the run's."""
    lines = [*sorted(ledgers.items()), *([(GONE, rest)] if rest.trained else []), (TOTAL, run)]
    reasons = sorted({reason for _, ledger in lines for reason in ledger.discarded})
    head = ("UNIT", "TRAINED", "MERGED", *(reason.upper() for reason in reasons), "IN FLIGHT", "SHARE MERGED")
    rows = []
    for name, ledger in lines:
        figures = (
            ledger.trained,
            ledger.merged,
            *(ledger.discarded.get(reason, 0) for reason in reasons),
            ledger.in_flight,
        )
        share = f"{100 * ledger.merged / ledger.trained:.1f} %" if ledger.trained else "-"
        rows.append((name, *(tokens(figure, ledger.fragments) for figure in figures), share))
    return table(head, rows)


def waiting(ledgers: Mapping[str, LedgerView]) -> list[str]:
    """A line for each fragment of a unit with tokens that wait for the unit's link."""
    return [
        f"{name}: {wait['tokens']:,} tokens of fragment {wait['fragment']} since step {wait['since']}: {wait['what']}"
        for name, ledger in sorted(ledgers.items())
        for wait in ledger.waits
    ]


def tokens(figure: int, fragments: int) -> str:
    """Token-fragments as tokens: `12,288`, or `12,288.5` if only some fragments of a token count."""
    if not fragments:
        return "-"
    whole, rest = divmod(figure, fragments)
    return f"{figure / fragments:,.1f}" if rest else f"{whole:,}"


def verdict(wrong: Mapping[str, LedgerView]) -> str:
    """Say whether the ledger balances. If not, say where it does not, and by how much."""
    if not wrong:
        return "balanced: every token is merged, discarded for a reason, or in flight"
    parts = [
        f"{name} by {tokens(ledger.balance, ledger.fragments)} tokens ({ledger.balance} token-fragments)"
        for name, ledger in sorted(wrong.items())
    ]
    return f"does not balance: {', '.join(parts)}"


def document(
    run: str, ledgers: Mapping[str, LedgerView], rest: LedgerView, own: LedgerView, balanced: bool
) -> dict[str, Any]:
    """The ledger with exact integers. `total` is the run's, which includes deleted units."""
    return {
        "run": run,
        "balanced": balanced,
        "units": {
            name: _figures(ledger) | {"waits": list(ledger.waits)} for name, ledger in sorted(ledgers.items())
        },
        "gone": _figures(rest),
        "total": _figures(own),
    }


def _figures(ledger: LedgerView) -> dict[str, Any]:
    found = camel_keys(ledger) | {"balance": ledger.balance}
    del found["waits"]  # only units have them
    return found
