"""Failing links with real sockets: one unit is cut off, slowed down and reset while the others train."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy_learner
import pytest

from atoll_local.host import prepare_namespaces
from atoll_local.link import Link, shape
from atoll_local.namespaces import Namespace
from atoll_local.network import Network, sh
from atoll_local.process import spawn
from atoll_runtime.contract import CheckpointSpec, OuterSpec, SyncerStatus, TargetSpec, dump

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(600),  # of which packages may need most, once
]
UNITS = ("near", "far", "lost")
RATE, DELAY = 2_000_000, 0.01
"""Of a sound link: eight times what a unit needs."""
STEP_SECONDS = 0.1
ROUNDS = 8
"""For which a failure lasts: the others take two seconds for them."""
AGAIN_SECONDS = 60.0
"""From a link's return until its unit is merged. TCP and the client try again after about as long as the link was down,
and the host tries a link that seemed slow once it has been idle for as long. Machines may be busy."""

CHANCE = random.Random(1)
"""Of a connection that is reset."""

Change = Callable[[Namespace], None]


def link(**changes: Any) -> Change:
    return lambda place: shape(place, Link(**{"rate": RATE, "delay": DELAY, **changes}))


def inside(place: Namespace, command: str) -> None:
    sh("nsenter", "-t", str(place.pid), "-n", *command.split())


def nothing_out(place: Namespace) -> None:
    inside(place, "tc qdisc replace dev eth0 root blackhole")


def nothing_in(place: Namespace) -> None:
    sh(*f"tc qdisc replace dev {place.network.link(place.index)} root blackhole".split())


def reset(place: Namespace) -> None:
    inside(place, f"ss -K dst {place.network.host}")


def reset_some(place: Namespace) -> None:
    """Each connection with a chance of 2 %."""
    told = sh("nsenter", "-t", str(place.pid), "-n", *f"ss -Htn dst {place.network.host}".split())
    for port in (line.split()[3].rpartition(":")[2] for line in told.splitlines()):
        if CHANCE.random() < 0.02:
            inside(place, f"ss -K dst {place.network.host} sport = :{port}")


FAILURES: dict[str, list[Change]] = {  # others, of rate and delay: tests/schedules/test_links.py
    "down": [link(cut=True)],
    "nothing gets out": [nothing_out],
    "nothing gets in": [nothing_in],
    "connections reset": [reset] * 4,
    "2 % of connections reset, time and again": [reset_some] * 8 * ROUNDS,
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Namespace]]:
    """A namespace for each unit. The syncer is on the host, which they call localhost."""
    prepare_namespaces(print)
    network = Network(bridge="atollfail", subnet="10.254.0.0/24", pods="10.243.0.0/16")
    network.up()
    try:
        with ExitStack() as entered:
            yield {
                name: entered.enter_context(
                    Namespace(name, index, network, tmp_path / "places", {"localhost": network.host})
                )
                for index, name in enumerate(UNITS)
            }
    finally:
        network.down()


@pytest.fixture
def start(places: dict[str, Namespace], tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts a unit's learner in its namespace."""
    with ExitStack() as ends:

        def one(run: Any, name: str, tls: Path) -> None:
            (tmp_path / "run.json").write_text(dump(run))
            script = [sys.executable, numpy_learner.__file__, str(tmp_path / "run.json"), str(tls), name, "1"]
            process = spawn([*places[name].inside, *script, str(STEP_SECONDS)], tmp_path / f"{name}.log")
            ends.callback(process.wait, 20)
            ends.callback(process.kill)

        yield one


def test_training_goes_on_whatever_a_link_does_and_its_unit_is_merged_again_when_it_is_back(
    make_run: Any, certificate: Any, syncer: Any, eventually: Any, places: Any, start: Any, tmp_path: Path
) -> None:
    run = make_run(
        outer=OuterSpec(fragments=4, interval=8, overlap=2, learning_rate=1.0, momentum=0.0),
        target=TargetSpec(global_steps=1_000_000),
        checkpoint=CheckpointSpec(uri=f"file://{tmp_path}/bucket", interval_steps=1000),
    )
    shard = syncer(run)

    def status() -> SyncerStatus:
        found: SyncerStatus = eventually(shard.status)
        return found

    eventually(shard.status, 60)
    for name in UNITS:
        link()(places[name])
        start(run, name, certificate(name))
    eventually(lambda: len(s := status().units) == 3 and all(u.contributions > 4 for u in s.values()), 60)

    for name, changes in FAILURES.items():
        print(name)
        before = status()
        for number, change in enumerate(changes, 1):
            change(places["lost"])
            wanted = before.rounds + ROUNDS * number // len(changes)
            eventually(lambda wanted=wanted: status().rounds >= wanted, 60)
        link()(places["lost"])
        back = status()
        eventually(
            lambda back=back: status().units["lost"].contributions > back.units["lost"].contributions,
            AGAIN_SECONDS,
        )
        # Its body may be merged before its session is back, which tells of its steps.
        eventually(
            lambda before=before: all(
                unit.step > before.units[key].step for key, unit in status().units.items()
            ),
            AGAIN_SECONDS,
        )
        after = status()
        assert all(after.units[unit].incarnation == 1 for unit in UNITS), name
        for unit, ledger in after.ledger.items():
            lost = sum(ledger.discarded.values())
            assert ledger.trained == ledger.merged + lost + ledger.in_flight, f"{name}: {unit}"
