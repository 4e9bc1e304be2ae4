"""The reduced proof of learning, as a user calls it: losses over three seeds."""

import json
import os
import subprocess
import sys
from statistics import fmean, stdev

import pytest
from protocol_parties import eventually

from atoll_bench.parity import cases

TIMEOUT = 3600
"""Seconds. Four minutes on two quiet cores; others may use them too."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(TIMEOUT + 60)]


COMMAND = (sys.executable, "-m", "atoll_cli", "bench", "parity", "--reduced", "--json", "--out")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The rows that `atoll bench parity --reduced` prints for its cases."""
    command = [*COMMAND, str(tmp_path_factory.mktemp("parity"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-2000:]
    return [row for row in map(json.loads, done.stdout.splitlines()) if row["case"] != "tune"]


def losses(rows, case, **wanted):
    """Of each seed."""
    found = [row for row in rows if row["case"] == case and wanted.items() <= row.items()]
    assert sorted(row["seed"] for row in found) == list(cases.SEEDS)
    return [row["loss"] for row in sorted(found, key=lambda row: row["seed"])]


def gap(rows, case, **wanted):
    """Mean over seeds of the relative distance to data-parallel training."""
    plain = losses(rows, "a")
    return fmean(found / base - 1 for found, base in zip(losses(rows, case, **wanted), plain, strict=True))


def test_learners_learn_nearly_what_data_parallel_training_does(rows):
    assert gap(rows, "b", learners=2) < 0.05
    assert gap(rows, "b", learners=8) < 0.10


def test_outer_gradients_in_four_bits_are_inside_the_spread_of_sixteen(rows):
    plain = losses(rows, "b", learners=8)
    assert abs(fmean(losses(rows, "c")) - fmean(plain)) < stdev(plain)


def test_unequal_learners_lose_visibly_without_grace_and_little_with_it(rows):
    everyone, grace, alone = (losses(rows, "e", policy=policy) for policy in ("K=M", "K=1+grace", "K=1"))
    cost = fmean(alone) - fmean(everyone)
    assert stdev(everyone) < cost < 0.4 * fmean(everyone)
    assert fmean(grace) - fmean(everyone) < 0.7 * cost


def test_losses_and_heals_cost_less_than_the_tokens_that_they_take(rows):
    assert gap(rows, "f") < 0.12


def test_no_honest_contribution_is_refused(rows):
    assert [row for row in rows if row["refused"]] == []


def test_a_proof_that_is_killed_takes_its_trials_with_it(tmp_path, processes_of):
    marked = {**os.environ, "TEST": str(tmp_path)}
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path)], env=marked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: any(b"spawn_main" in command for command in processes_of(tmp_path)), 120)
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not processes_of(tmp_path), 120)
