"""One of several learners attacks, in simulated time: what the syncer refuses, and that the others' work goes on."""

import json
import logging
from dataclasses import replace

import pytest

from atoll_bench import attacks, command
from atoll_bench.attacks import ATTACKS
from atoll_runtime.contract import GraceSpec, QuorumSpec
from atoll_runtime.simulate.training.setting import Setting

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def setting(setting) -> Setting:
    """Four learners of which two are enough, 40 steps."""
    return replace(setting, quorum=QuorumSpec(min=2, grace=GraceSpec()), steps=40, paces=(1.0,) * 4)


@pytest.fixture(scope="module")
def clean(setting) -> float:
    loss, refused, false = attacks.train(setting, "none", 0)
    assert loss is not None and (refused, false) == (0, 0), "nobody is refused who does nothing wrong"
    return loss


@pytest.mark.parametrize("attack", ["nan", "scale", "bits", "tokens", "replay"])
def test_what_one_learner_sends_wrong_is_refused_and_costs_no_more_than_its_work(
    attack, setting, clean
) -> None:
    loss, refused, false = attacks.train(setting, attack, 0)
    assert refused >= 10 and false == 0
    assert loss == pytest.approx(clean, rel=0.1)


def test_reports_of_slow_steps_change_nothing_for_the_others(setting, clean) -> None:
    assert attacks.train(setting, "slow", 0) == (pytest.approx(clean, rel=1e-6), 0, 0)


def test_without_the_guard_the_attack_shows(setting, clean) -> None:
    """The measure can tell: the same attack, nothing refused."""
    open_to_all = replace(setting, outer=setting.outer.model_copy(update={"guard": False}))
    loss, refused, _ = attacks.train(open_to_all, "scale", 0)
    assert refused == 0
    assert loss is None or loss > 1.02 * clean


def test_each_line_has_the_keys_that_scripts_read(setting, monkeypatch, capsys) -> None:
    monkeypatch.setattr(attacks, "setting", lambda *_: replace(setting, steps=8))
    monkeypatch.setattr(attacks, "write_stdlib", lambda _: None)
    monkeypatch.setattr(
        logging.root.manager, "disable", 0
    )  # put back afterwards: other tests look at the log
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)  # and use all cores
    command.main(["attacks", "--json", "--attack", "noise,none", "--seed", "3"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(line) for line in lines] == [
        ["attack", "seed", "loss", "clean_loss", "refused", "false_refusals"]
    ] * 2
    assert [(line["attack"], line["seed"]) for line in lines] == [("noise", 3), ("none", 3)]
    assert lines[1]["loss"] == lines[1]["clean_loss"] == lines[0]["clean_loss"]


def test_every_attack_of_the_command_line_is_there() -> None:
    assert list(command.ATTACKS) == list(ATTACKS)
