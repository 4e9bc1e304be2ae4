"""A learner that was given TPU chips trains on them or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.learner.mesh import check_chips
from atoll_runtime.process import Terminal

pytestmark = pytest.mark.timeout(300)  # two processes that import JAX: 4 s alone
JOIN = """
import json
from atoll_runtime.contract import MeshSpec, UnitContract
from atoll_runtime.learner.mesh import join

unit = UnitContract(
    unit="u", incarnation=1, host=0, hosts=1, chips=4, coordinator="c:1", batch=8, stream=0, streams=1
)
try:
    found = ["joined", [device.platform for device in join(unit, MeshSpec()).devices.flat]]
except Exception as error:
    found = [type(error).__name__, getattr(error, "reason", ""), str(error)]
print(json.dumps(found))
"""
LIBRARY = """
def get_library_path():
    return __file__
"""
"""A libtpu in which JAX finds no TPU."""


def joined(**environment: str) -> list[str]:
    """What became of a host of four chips that joined its mesh, on a machine without any."""
    least = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-c", JOIN]
    done = subprocess.run(command, env=least | environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_an_image_without_libtpu_ends_the_unit_for_good_and_both_numbers_are_named() -> None:
    kind, reason, message = joined()
    assert (kind, reason) == ("Terminal", "ChipsMissing")
    assert "4 TPU chips" in message and "finds 0" in message and "libtpu" in message


def test_chips_that_jax_cannot_use_now_are_worth_a_restart_and_the_cpu_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "libtpu.py").write_text(LIBRARY)
    kind, _, message = joined(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert kind == "ChipsUnavailable"
    assert "4 TPU chips" in message and "Unable to initialize backend 'tpu'" in message


@given(chips=st.integers(1, 8), devices=st.integers(0, 16), others=st.integers(0, 3))
def test_one_device_for_each_chip_will_do_and_fewer_end_the_unit_whatever_else_there_is(
    chips: int, devices: int, others: int
) -> None:
    """TPU7x has a device for each of a chip's two cores."""
    found = ["tpu"] * devices + ["cpu"] * others
    if devices >= chips:
        check_chips(chips, found)
        return
    with pytest.raises(Terminal, match=f"given {chips} TPU chips") as caught:
        check_chips(chips, found)
    assert caught.value.reason == "ChipsMissing"
    message = str(caught.value)
    assert f"{devices} tpu" in message if devices else "tpu" not in message
    assert f"{others} cpu" in message if others else "cpu" not in message
