"""`atoll bench utilisation` at a small size: a cell of the grid comes to its figures, over real links."""

from __future__ import annotations

import os

import pytest
from compile_cache import kept_programs

from atoll_bench.parity.sizes import SIZES
from atoll_bench.regions import simulated, utilisation
from atoll_bench.regions.decoupled import environment


def test_each_run_is_as_long_as_its_shares_need() -> None:
    assert utilisation.steps_of(5.0, 8) == utilisation.WARM_STEPS + utilisation.COUNTED_STEPS
    assert utilisation.steps_of(5.0, 128) == 4 * 128
    assert utilisation.steps_of(0.05, 8) == 2448, "twelve times the model in int4, of 204 steps each"


def test_a_machine_that_gets_slower_costs_no_utilisation() -> None:
    assert [utilisation.between(1.0, 2.0, position, 3) for position in range(3)] == [1.25, 1.5, 1.75]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.timeout(600)
def test_a_cell_is_measured_and_compared_with_simulations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(utilisation, "environment", lambda folder: environment(folder) | kept_programs())
    monkeypatch.setattr(simulated, "GRID_STEPS", 40)
    monkeypatch.setattr(utilisation, "WARM_STEPS", 16)
    monkeypatch.setattr(utilisation, "COUNTED_STEPS", 384)
    (cell,) = utilisation.measure((5.0,), (8,), SIZES["30k"].model)
    runs = [f"H = 8, {links}: 400 steps" for links in ("no limit", "5 Gbit/s", "no limit")]
    assert capsys.readouterr().err.splitlines()[-3:] == runs
    assert (cell.gbps, cell.interval, cell.steps, cell.published) == (5.0, 8, 400, None)
    assert cell.utilisation > 0 and 0 < cell.merged_share <= 1
    assert min(cell.free_step_seconds) > 0 and cell.streams >= 1 and cell.period >= 1
    assert cell.codec in simulated.CODECS and cell.best_codec in simulated.CODECS
    assert cell.simulated_utilisation == pytest.approx(1.0)
    assert 0 < cell.policy_share <= 1 and 0 < cell.best_share <= 1 and cell.best_interval == 8
