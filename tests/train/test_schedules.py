"""Learning rates over a run."""

import numpy as np

from kvjax.train import cosine, rise_and_fall, trapezoid


def test_the_worked_trapezoid():
    at = trapezoid(0.02, 2000)
    want = [0.002, 0.002, 0.00205, 0.01, 0.02, 0.01, 0.002]
    np.testing.assert_allclose([at(s) for s in (0, 39, 40, 199, 399, 1800, 1999)], want, rtol=1e-6)


def test_a_cosine_goes_up_and_down_to_its_floor():
    at = cosine(1.0, 1000, warmup=50, floor=0.01)
    np.testing.assert_allclose([at(0), at(25), at(50), at(525), at(1000)], [0, 0.5, 1, 0.505, 0.01], rtol=1e-5)
    short = cosine(1.0, 20, warmup=50, floor=0.01)
    assert max(float(short(s)) for s in range(20)) == 1.0 and float(cosine(1.0, 1, warmup=50, floor=0.1)(1)) > 0


def test_a_rate_rises_and_falls_in_straight_lines():
    at = rise_and_fall(1.0, 3000, rise=2 / 3)
    np.testing.assert_allclose([at(s) for s in (0, 1000, 2000, 2500, 3000)], [0, 0.5, 1, 0.5, 0], atol=1e-6)
    assert np.isfinite([float(rise_and_fall(1.0, 1, rise=2 / 3)(s)) for s in (0, 1)]).all()
