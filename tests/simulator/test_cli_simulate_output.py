"""What all questions of `atoll simulate` share: how values are read and shown."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_cli.arguments import choice, count, number, seconds, several
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import show


def test_values_are_read_with_their_prefixes_and_units() -> None:
    counts = [count()("--chips", text) for text in ("8", "150k", "4.1M", "2e3", "1B")]
    assert counts == [8, 150_000, 4_100_000, 2000, 10**9]
    times = [seconds()("--mtbi", text) for text in ("90", "90s", "15m", "12h", "1y")]
    assert times == [90.0, 90.0, 900.0, 43_200.0, 365.25 * 86_400]
    assert [seconds(zero=True)("--repair", text) for text in ("0", "0m", "1m")] == [0.0, 0.0, 60.0]
    assert number()("--jitter", "0") == 0.0
    assert several(number())("--speeds", "1, 1.18,2k") == [1.0, 1.18, 2000.0]


BAD = (
    *(
        (count(), text, "a whole number from 1 to ")
        for text in ("", "x", "1.5", "0", "-3", "inf", "1e13", "k")
    ),
    *(
        (seconds(), text, "a time above 0 and at most 1000000000000s is wanted")
        for text in ("", "0s", "-1h", "nan", "1 week")
    ),
    (number(most=1), "1.2", "a number from 0 to 1 is wanted"),
    (seconds(1e6, least=1e-6), "1e-300", "a time from 1e-06s to 1000000s is wanted"),
    (number(1), "1e30", "a number from 1 to 1e+18 is wanted"),
    (number(most=1e6, above=True), "0", "a number above 0 and at most 1000000 is wanted"),
    (choice("rigid", "elastic"), "Rigid", "one of rigid, elastic is wanted"),
)


@pytest.mark.parametrize(("read", "text", "words"), BAD)
def test_a_bad_value_is_one_line_that_names_option_and_value(read: Any, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read("--option", text)
    assert str(refused.value).startswith(f"--option {text!r}: {words}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("goodput", 0.98031, "98.03 %"),
        ("interval", [0.97, 0.98], "97.00 % to 98.00 %"),
        ("interval", 24, "24"),
        ("spot_as_on_demand", ["v5e", "v6e"], "v5e, v6e"),
        ("spot_as_on_demand", [], "none"),
        ("seconds_to_target", 5302.0, "1.5 h"),
        ("seconds_to_target", 1e10, "never"),
        ("seconds_to_target", None, "never"),
        ("heal_seconds", {"pull": 30.0, "catch_up": 0.01}, "pull 30 s, catch up 10 ms"),
        ("checkpoint", {"cut_bytes": 7_900_000_000, "gbps": 1.846}, "cut bytes 7.9 GB, gbps 1.85"),
        ("lost_chip_hours_per_day", {"below_quorum": 0.5}, "below quorum 0.5"),
        ("cost", {"per_day": 6451.2}, "per day $6,451.20"),
        ("interruptions_a_day", 38_013.25, "38,013"),
        ("interruptions_a_day", 999.6, "1,000"),
        ("chips", 1_200_000, "1,200,000"),
        ("best", True, "*"),
    ],
)
def test_a_value_is_shown_as_the_words_of_its_key_say(key: str, value: Any, shown: str) -> None:
    assert show(key, value) == shown
