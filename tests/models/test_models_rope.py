"""Rotary embeddings against slow transcriptions of the formulas, and the spellings of a config.json."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from models import rope
from models.rope_config import resolve

THETA, DIM = 1e4, 64
PLAIN = [THETA ** (-2 * i / DIM) for i in range(DIM // 2)]


def close(made, expected):
    np.testing.assert_allclose(made.frequencies, expected, rtol=1e-6)


def test_plain_and_linear():
    close(rope.plain(THETA, DIM), PLAIN)
    made, positions = resolve({"rope_theta": THETA, "type": "linear", "factor": 4.0}, DIM, 4096)
    close(made, [f / 4 for f in PLAIN])
    assert positions == 4 * 4096


def test_llama3():
    def one(f):
        wavelength = 2 * math.pi / f
        if wavelength < 8192 / 4:
            return f
        if wavelength > 8192 / 1:
            return f / 8
        s = (8192 / wavelength - 1) / (4 - 1)
        return (1 - s) * f / 8 + s * f

    fields = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    made, positions = resolve({**fields, "original_max_position_embeddings": 8192, "rope_theta": THETA}, DIM, 131072)
    close(made, [one(f) for f in PLAIN])
    assert positions == 131072 and made.factor == 1


@pytest.mark.parametrize("extra", [{}, {"beta_fast": 64, "beta_slow": 2}, {"mscale": 0.7, "mscale_all_dim": 1.2}])
def test_yarn(extra):
    fast, slow = extra.get("beta_fast", 32), extra.get("beta_slow", 1)
    low, high = (DIM * math.log(4096 / (2 * math.pi * b)) / (2 * math.log(THETA)) for b in (fast, slow))
    low, high = math.floor(low), math.ceil(high)

    def one(i, f):
        interpolated = min(max((i - low) / (high - low), 0), 1)
        return interpolated * f / 16 + (1 - interpolated) * f

    fields = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "rope_theta": THETA}
    made, positions = resolve({**fields, **extra}, DIM, 4096)
    close(made, [one(i, f) for i, f in enumerate(PLAIN)])
    ln = 0.1 * math.log(16)
    expected = (0.7 * ln + 1) / (1.2 * ln + 1) if "mscale" in extra else ln + 1
    assert made.factor == pytest.approx(expected) and positions == 65536


def test_a_null_truncate_is_a_false():
    """The ramp of 8 dimensions at theta 100 runs from index 1.28 to 5.29: with its ends rounded outwards, from 1 to 6."""
    fields = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 875, "rope_theta": 100.0}
    null, false, true, absent = (
        resolve({**fields, **more}, 8, 875)[0] for more in ({"truncate": None}, {"truncate": False}, {"truncate": True}, {})
    )
    assert null == false != true == absent
    low = 8 * math.log(875 / (2 * math.pi * 32)) / (2 * math.log(100))
    high = 8 * math.log(875 / (2 * math.pi)) / (2 * math.log(100))
    ramp = [(max(i - low, 0)) / (high - low) for i in range(4)]
    close(null, [100 ** (-i / 4) * (r / 4 + 1 - r) for i, r in enumerate(ramp)])
    assert resolve({"rope_type": "linear", "factor": 2.0, "truncate": None}, 8, 875)[0].dim == 8


def test_rotation_is_that_of_complex_numbers():
    made = rope.Rope(rope.plain(THETA, 8).frequencies, 1.5)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    cos, sin = made.cos_sin(jnp.arange(5))
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * np.arange(5)[:, None] * np.array(made.frequencies)) * 1.5
    np.testing.assert_allclose(made.rotate(jnp.asarray(x), cos, sin), np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic.*supported"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "longrope.*supported"),
        ({"type": "default", "mrope_section": [1, 2]}, "mrope_section"),
        ({"rope_type": "linear"}, "needs the field 'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_what_is_not_honoured_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        resolve(fields, DIM, 4096)
