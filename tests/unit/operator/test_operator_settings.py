"""The operator's settings: read from its environment, with defaults, and refused by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atoll_operator import settings
from atoll_operator.plan.pods.names import evaluator_host

LEAST = {"ATOLL_RUNTIME_IMAGE": "runtime:1"}


def test_settings_are_read_and_have_defaults_for_all_but_the_image() -> None:
    read = settings.read(LEAST | {"ATOLL_NAMESPACES": "a, b", "ATOLL_RUNTIME_ENV": '{"X": "1"}'})
    assert (read.namespaces, read.runtime_env) == (("a", "b"), {"X": "1"})
    read = settings.read(LEAST)
    assert (read.namespaces, read.health_port, read.resync_seconds, read.poll_seconds) == ((), 8080, 300, 2)
    url = read.syncer_url.format(run="r", namespace="n", shard=1)
    assert url == "https://r-syncer-1.r-syncer.n.svc:7401/status"
    url = read.evaluator_url.format(run="r", namespace="n")
    assert url == f"https://{evaluator_host('r', 'n')}:7401/status"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNTIME_IMAGE", ""), ("RUNTIME_ENV", "{"), ("RUNTIME_ENV", '{"X": 1}'), ("LEASE_SECONDS", "2"),
        ("RUNTIME_ENV", json.dumps({f"X{n}": "" for n in range(65)})), ("LEASE_SECONDS", "10.5"),
        ("RUNTIME_ENV", json.dumps({"X": "a" * 4097})), ("RUNTIME_PULL_POLICY", "Sometimes"),
        ("HEALTH_PORT", "x"), ("POLL_SECONDS", "0"), ("LOG_FORMAT", "xml"), ("SYNCER_URL", "https://{host}"),
        ("EVALUATOR_URL", "https://{shard}"), ("STUCK_SECONDS", "0"), ("LEASE_NAMESPACE", "Not_A_Name"),
        ("NAMESPACES, 1", "a,team-*"), ("NAMESPACES, 0", "A"),
        ("LIMITS, namespaces, a, host", '{"namespaces": {"a": {"host": 1}}}'), ("LIMITS, runs", '{"runs": -1}'),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_an_error_that_names_it(name, value) -> None:
    with pytest.raises(settings.SettingsError, match=f"ATOLL_{name}"):
        settings.read(LEAST | {f"ATOLL_{name.partition(',')[0]}": value})


def test_the_operator_without_settings_ends_with_one_sentence() -> None:
    command = [sys.executable, "-m", "atoll_operator"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=50, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("atoll-operator: ATOLL_RUNTIME_IMAGE is not set")
    assert "Traceback" not in done.stderr
