"""A bad value of any option of `atoll simulate` ends with status 2 and one line that names the option."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

SHARDED = Path(__file__).resolve().parents[2] / "manifests" / "samples" / "sharded.yaml"
CASE = "bandwidth --params 5B --step-time 1 --method"
PLAN = f"plan {SHARDED}"

REFUSED = (
    # a command, and words of the line
    ("goodput --learners 16 --chips 8", "--learners"),
    ("goodput --learners 2 --quorum 2 --method rigid", "--quorum '2': a whole number from 1 to 1"),
    ("goodput --mtbi -1d", "--mtbi '-1d': a time above 0 and at most"),
    ("links --links -1,2", "--links '-1': a number from"),
    ("bandwidth --params -5B", "--params '-5B': a number from 1 to"),
    ("goodput --mtbi 1w", "--mtbi"),  # too much to simulate
    ("goodput --resize 1m --method unit", "--resize"),
    ("goodput --quorum 9 --learners 8", "--quorum"),
    ("goodput --patience 1h --method unit", "--patience"),
    ("bandwidth --params 5B", "--params"),
    ("bandwidth --method diloco --step-time 1", "--params"),
    ("bandwidth --method diloco --params 5B", "--step-time"),
    (f"{CASE} decoupled --fragments 25", "--fragments '25': a whole number from 1 to 24 is wanted"),
    (f"{CASE} streaming --interval 8 --fragments 9", "--fragments '9': a whole number from 1 to 8 is wanted"),
    (f"{CASE} streaming-overlap --overlap 101", "--overlap '101': a whole number from 1 to 100 is wanted"),
    (f"{CASE} decoupled --overlap 0", "--overlap '0': a whole number from 1"),
    ("heterogeneity --speeds 1,fast", "--speeds 'fast': a number from 0.01 to 100"),
    (f"heterogeneity --speeds {','.join(['1'] * 200)}", "at most 128"),
    ("heterogeneity --speeds 1,50", "at most 20"),
    ("heterogeneity --quorum 9", "at most the 8 learners"),
    ("links --links 0,1", "--links"),
    ("links --links 1 --quorum 2", "--quorum"),
    ("links --fragments 24 --interval 12", "--fragments"),
    ("links --steps 10", "--steps"),
    ("links --outages nowhere.json", "--outages 'nowhere.json': No such file or directory"),
    ("links --links 0.001,0.001,5 --quorum 2", "--links '0.001': a whole version takes 16000 s"),
    ("links --links 0.02 --codec int4", "--links '0.02': a whole version takes 800 s"),
    ("links --links 5 --params 1e15", "2222.223 or more is wanted"),
    ("links --links 0.5 --step-time 1 --interval 1 --steps 4", "--links, --delay, --outages: "),
    ("links --outages ''", "--outages '': a path on this machine is wanted"),
    ("links --steps 1000000", "--steps '1000000': 7,000,000 inner steps of all units; at most 500,000"),
    ("links --steps 48 --step-time 0.001 --delay 10000", "inner steps of all units"),
    ("heterogeneity --speeds 1,2 --steps 500000", "--steps '500000': 1,500,000 inner steps"),
    ("scavenge --extra 0.3", "--extra '0.3': times 4 learners is no whole number"),
    (f"{PLAN} --price 2.7", "--price '2.7': GENERATION=DOLLARS is wanted, such as v6e=2.70"),
    (f"{PLAN} --price v6e", "--price 'v6e': GENERATION=DOLLARS is wanted, such as v6e=2.70"),
    (f"{PLAN} --price v9=1", "--price 'v9': one of v5e, v5p, v6e, tpu7x is wanted"),
    (f"{PLAN} --price v5e=1", "--price: none is given for v6e, of which pool 'v6e' is"),
    (f"{PLAN} --step-time v7=1s", "--step-time 'v7': one of v6e is wanted"),
)


@pytest.mark.parametrize(("command", "words"), REFUSED, ids=lambda text: text.replace(str(SHARDED), "")[:50])
def test_a_bad_value_is_one_line_that_names_the_option(command: str, words: str, refused: Any) -> None:
    assert words in refused(*shlex.split(command))


def test_an_outage_that_only_links_too_slow_for_a_round_survive_is_refused(
    refused: Any, tmp_path: Path
) -> None:
    file = tmp_path / "outages.json"
    file.write_text(json.dumps([{"unit": 0, "from": 0, "until": 1e9}]))
    asked = ("--params", "1e12", "--fragments", "1", "--steps", "48", "--outages", file)
    assert "400,000,096 inner steps of all units" in refused("links", "--links", "1e5,0.01", *asked)


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ("[" * 100_000, "a file with a JSON list is wanted"),
        ([{"unit": 9, "from": 1, "until": 2}], "the units 0 to 1"),
        ([{"unit": 0, "from": 5, "until": 2}], "until '2': a number above 5 and at most 1e+18"),
        ([{"unit": 0, "from": 1, "until": 9}, {"unit": 0, "from": 5, "until": 12}], "overlap"),
        ([{"unit": 0}], "entry 0"),
        ({"unit": 0}, "list"),
    ],
)
def test_outages_that_make_no_sense_are_refused(
    refused: Any, tmp_path: Path, entries: Any, wanted: str
) -> None:
    file = tmp_path / "outages.json"
    file.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    assert wanted in refused("links", "--links", "5,5", "--outages", file)
