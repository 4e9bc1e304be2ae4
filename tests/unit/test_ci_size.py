"""The size check of `.ci/run`: where files count, and the growth at which it fails."""

import pytest
import size


def test_lines_are_counted_by_total_and_area(tmp_path) -> None:
    files = {
        "operator/atoll_operator/a.py": "x = 1\n\n",
        "operator/b.py": "x = 1\n",
        "tests/unit/test_a.py": "x = 1\n",
        "tests/unit/operator/test_b.py": "x = 1\n",
        "tests/schedules/test_operator_c.py": "x = 1\n",
        "tests/control/conftest.py": "x = 1\n",
        "tests/conftest.py": "",
        "docs/conf.py": "x = 1\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert size.measure(tmp_path, [*files, "operator/deleted.py"]) == {
        "product": {"operator": 3},
        "tests": {"conftest": 0, "operator": 3, "unit": 1},
    }


@pytest.mark.parametrize(("lines", "fails"), [(90, False), (102, False), (103, True)])
def test_a_total_fails_when_it_grows_by_more_than_two_percent(lines, fails) -> None:
    recorded = {"product": {"operator": 60, "cli": 40}, "tests": {"unit": 10}}
    now = {"product": {"operator": lines}, "tests": {"unit": 10}}
    messages = size.grown(now, recorded)
    assert bool(messages) == fails
    assert all("product: 103 lines" in message and "100 in docs/size.json" in message for message in messages)
