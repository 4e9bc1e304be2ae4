"""The operator's settings: read from its environment, with defaults, and refused by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atoll_operator import settings
from atoll_operator.plan.pods.names import evaluator_host

LEAST = {"ATOLL_RUNTIME_IMAGE": "runtime:1"}


def test_settings_have_defaults_for_all_but_the_image() -> None:
    read = settings.read(LEAST)
    assert (read.namespaces, read.health_port, read.resync_seconds, read.poll_seconds) == ((), 8080, 300, 2)
    url = read.syncer_url.format(run="r", namespace="n", shard=1)
    assert url == "https://r-syncer-1.r-syncer.n.svc:7401/status"
    url = read.evaluator_url.format(run="r", namespace="n")
    assert url == f"https://{evaluator_host('r', 'n')}:7401/status"


def test_settings_are_read() -> None:
    read = settings.read(LEAST | {"ATOLL_NAMESPACES": "a, b", "ATOLL_RUNTIME_ENV": '{"X": "1"}'})
    assert (read.namespaces, read.runtime_env) == (("a", "b"), {"X": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATOLL_RUNTIME_IMAGE", ""),
        ("ATOLL_RUNTIME_ENV", "{"),
        ("ATOLL_RUNTIME_ENV", '{"X": 1}'),
        ("ATOLL_RUNTIME_ENV", json.dumps({f"X{n}": "" for n in range(65)})),
        ("ATOLL_RUNTIME_ENV", json.dumps({"X": "a" * 4097})),
        ("ATOLL_RUNTIME_PULL_POLICY", "Sometimes"),
        ("ATOLL_HEALTH_PORT", "x"),
        ("ATOLL_POLL_SECONDS", "0"),
        ("ATOLL_LOG_FORMAT", "xml"),
        ("ATOLL_SYNCER_URL", "https://{host}"),
        ("ATOLL_EVALUATOR_URL", "https://{shard}"),
        ("ATOLL_STUCK_SECONDS", "0"),
        ("ATOLL_LEASE_NAMESPACE", "Not_A_Name"),
        ("ATOLL_LEASE_SECONDS", "2"),
        ("ATOLL_LEASE_SECONDS", "10.5"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(name, value) -> None:
    with pytest.raises(settings.SettingsError, match=name):
        settings.read(LEAST | {name: value})


def test_the_operator_without_settings_ends_with_one_sentence() -> None:
    command = [sys.executable, "-m", "atoll_operator"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=50, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("atoll-operator: ATOLL_RUNTIME_IMAGE is not set")
    assert "Traceback" not in done.stderr
