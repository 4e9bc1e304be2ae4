"""`atoll simulate`: questions to ask before renting chips. Each question is a module with OPTIONS and `answer`."""

from __future__ import annotations

import argparse
from importlib import import_module

from atoll_cli.arguments import JSON, add
from atoll_cli.simulate.output import deliver

QUESTIONS = {
    "goodput": "useful share of the chips' time under failures",
    "bandwidth": "Gbit/s that a site needs",
    "heterogeneity": "fast and slow learners: quorum and grace",
    "links": "units on unequal links: who is in which rounds",
    "scavenge": "learners that come and go: time to the end",
    "plan": "what to expect of a TrainingRun, and what would do better",
}


def add_options(simulate: argparse.ArgumentParser) -> None:
    """Add the questions and their options."""
    questions = simulate.add_subparsers(dest="question", required=True, metavar="QUESTION")
    for name, what in QUESTIONS.items():
        question = questions.add_parser(name, help=what, description=what)
        add(question, (*import_module(f"atoll_cli.simulate.{name}").OPTIONS, JSON))


def run_simulate(options: argparse.Namespace) -> int:
    """Answer one question. Raises `UsageError` if an option's value cannot be used."""
    found = vars(options)
    report = import_module(f"atoll_cli.simulate.{options.question}").answer(found)
    deliver(report, as_json=bool(options.json))
    return 0
