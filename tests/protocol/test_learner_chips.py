"""A learner that was given TPU chips trains on them or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What became of a host of four chips that joined its mesh, on a machine without any."""
    library = tmp_path_factory.mktemp("libtpu")
    (library / "libtpu.py").write_text(LIBRARY)
    least = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    cases = {
        "without libtpu": {},
        "with libtpu": {"PYTHONPATH": str(library)},
    }
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", JOIN],
            env={**least, **added},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, added in cases.items()
    }
    found = {}
    try:
        for name, process in running.items():
            out, err = process.communicate(timeout=250)
            assert process.returncode == 0, err
            found[name] = json.loads(out.splitlines()[-1])
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    return found


def test_an_image_without_libtpu_ends_the_unit_for_good_and_both_numbers_are_named(joined) -> None:
    kind, reason, message = joined["without libtpu"]
    assert (kind, reason) == ("Terminal", "ChipsMissing")
    assert "4 TPU chips" in message and "finds 0" in message and "libtpu" in message


def test_chips_that_jax_cannot_use_now_are_worth_a_restart_and_the_cpu_is_not_taken(joined) -> None:
    kind, _, message = joined["with libtpu"]
    assert kind == "ChipsUnavailable"
    assert "4 TPU chips" in message and "Unable to initialize backend 'tpu'" in message


@given(chips=st.integers(1, 8), cores=st.integers(1, 2))
def test_one_device_for_each_chip_or_for_each_of_its_cores_will_do(chips: int, cores: int) -> None:
    check_chips(chips, ["tpu"] * chips * cores)


@given(chips=st.integers(1, 8), missing=st.integers(1, 8), others=st.integers(0, 3))
def test_fewer_tpu_devices_than_chips_end_the_unit_whatever_else_there_is(
    chips: int, missing: int, others: int
) -> None:
    held = max(0, chips - missing)
    with pytest.raises(Terminal) as caught:
        check_chips(chips, ["tpu"] * held + ["cpu"] * others)
    message = str(caught.value)
    assert caught.value.reason == "ChipsMissing"
    assert f"given {chips} TPU chips" in message
    assert f"{held} tpu" in message if held else "tpu" not in message
    assert f"{others} cpu" in message if others else "cpu" not in message
