"""The bench of the inner step: both loops train the same, and the figure says what was measured."""

import numpy as np
import pytest

from atoll_bench import step

pytestmark = pytest.mark.timeout(300)  # 5 s alone, most of it the compiler's


def test_both_loops_train_the_same_parameters() -> None:
    inner, ours, plain = step.loops("250k", 2, 16)
    ours(3)
    plain.advance(3)
    for name, value in inner.theta.items():
        np.testing.assert_allclose(np.asarray(value), np.asarray(plain._theta[name]), rtol=1e-4, atol=1e-5)


def test_figure_has_rates_and_the_share_of_the_given_peak() -> None:
    (found,) = step.measure("250k", batch=2, length=16, pairs=2, seconds=0.01, peak_tflops=1.0)
    assert found.steps >= 2 * found.pairs == 4
    assert found.ratio_quartiles[0] <= found.ratio <= found.ratio_quartiles[1]
    assert found.tokens_per_second == pytest.approx(found.ours * 32)
    assert found.utilisation == pytest.approx(6 * found.parameters * found.tokens_per_second / 1e12)
