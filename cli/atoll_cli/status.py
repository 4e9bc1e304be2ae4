"""`atoll status [RUN]`: a run and its units, or a line for every run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.formats import RUN, named, tell, tell_names
from atoll_cli.fresh import refreshed
from atoll_cli.kubectl import Kubectl, chosen
from atoll_cli.polling import poll
from atoll_cli.text import camel_keys, headline, heals, held_out, losses, run_table, top_table, unit_table
from atoll_cli.views import Sample, runs_of, sample_of


def show_status(options: argparse.Namespace) -> int:
    """Print a run, once or until it has ended, or the list of runs. Exit status 1 if the named run failed. Raises
    `CommandError`: there is no such run, or the cluster did not answer; `UsageError`: options that do not go
    together."""
    if options.watch and options.run is None:
        raise UsageError("--watch needs a RUN")
    if options.watch and options.output in ("yaml", "name"):
        raise UsageError(f"--watch goes with -o json or a table, not with -o {options.output}")
    if options.all_namespaces and options.run is not None:
        raise UsageError("--all-namespaces lists every run; a RUN is named with its --namespace")
    kubectl = chosen(options)
    if options.run is None:
        return _list(kubectl, ["-A"] if options.all_namespaces else [], options.output)
    return _show(kubectl, named(RUN, options.run), options)


def _list(kubectl: Kubectl, where: list[str], output: str | None) -> int:
    runs = runs_of(kubectl.get("trainingruns", *where)["items"])
    if output == "name":
        tell_names([name for _, name in runs])
    elif output in ("json", "yaml"):
        told = [{"namespace": space, **camel_keys(run)} for (space, _), run in runs.items()]
        tell({"runs": told}, output)
    else:
        print(run_table(runs, output == "wide") if runs else "there is no TrainingRun")
    return 0


def _show(kubectl: Kubectl, run: str, options: argparse.Namespace) -> int:
    def look() -> Sample:
        items = kubectl.get("trainingruns,learnerunits")["items"]
        sample = sample_of(run, items, time.time())
        if sample.run.complete or sample.run.failed:
            return sample
        found = (item for item in items if item["kind"] == "TrainingRun" and item["metadata"]["name"] == run)
        if (body := next(found, None)) is None:
            raise CommandError(f"no TrainingRun is called {run!r} in this namespace")
        shards = body.get("status", {}).get("syncerShards", 0)
        return refreshed(replace(kubectl, namespace=body["metadata"]["namespace"]), shards, sample)

    for number, sample in enumerate(poll(look, _tell) if options.watch else [look()]):
        if options.output == "name":
            tell_names([run], sorted(sample.units))
        elif options.output in ("json", "yaml"):
            tell(document(sample), options.output)
        else:
            lines = (
                [top_table(sample)] if options.command == "top" else _lines(sample, options.output == "wide")
            )
            print("\n" * bool(number) + "\n".join(lines), flush=True)
        if sample.run.complete or sample.run.failed:
            break
    return 1 if sample.run.failed else 0


def _tell(text: str) -> None:
    print(f"atoll: {text}", file=sys.stderr, flush=True)


def _lines(sample: Sample, wide: bool) -> Iterator[str]:
    run = sample.run
    yield f"{run.name}: {headline(run)}"
    if run.message:
        yield run.message
    if run.checkpoint_step is not None:
        yield f"newest checkpoint: global step {run.checkpoint_step} {run.final_checkpoint}".rstrip()
    if run.held_out is not None:
        yield held_out(run.held_out)
    yield unit_table(sample, wide)
    yield from (f"{name}: {unit.slow}" for name, unit in sorted(sample.units.items()) if unit.slow)
    yield from heals(sample)
    yield from losses(run)


def document(sample: Sample) -> dict[str, Any]:
    """The document of `--json`: `time` in Unix seconds, `run`, and `units` by name."""
    return {
        "time": sample.time,
        "run": camel_keys(sample.run),
        "units": {name: camel_keys(unit) for name, unit in sorted(sample.units.items())},
    }
