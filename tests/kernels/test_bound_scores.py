"""Every implementation of bound scores against float64 NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.bound_scores import api, bound_scores

#: b, h, g, p, d
CASES = {"one page": (1, 1, 1, 1, 16), "no multiple of a block": (2, 3, 2, 77, 48), "smollm2's heads, 8k": (1, 3, 3, 512, 64)}
HALF = ("bfloat16", "float16")


def make(b, h, g, p, d, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    q, one, two = (rng.normal(size=size) for size in ((b, h, g, d), (b, h, p, d), (b, h, p, d)))
    full = np.maximum(p - np.arange(b * h).reshape(b, h), 0)
    return *(jnp.asarray(x, dtype) for x in (q, np.minimum(one, two), np.maximum(one, two))), jnp.asarray(full, jnp.int32)


@pytest.mark.parametrize("case, dtype", [(c, "float32") for c in CASES] + [("no multiple of a block", d) for d in HALF])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
@pytest.mark.usefixtures("native")
def test_matches_float64(impl, case, dtype):
    *operands, full = make(*CASES[case], dtype)
    q, low, high = (np.asarray(x, np.float64) for x in operands)
    want = np.maximum(q[:, :, :, None] * high[:, :, None], q[:, :, :, None] * low[:, :, None]).sum(-1)
    want = np.where(np.arange(low.shape[2]) < np.asarray(full)[..., None, None], want, -np.inf)
    got = bound_scores(*operands, full, impl=impl)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=1e-5)


@pytest.mark.usefixtures("native")
def test_a_page_is_the_same_to_the_bit_alone_and_behind_any_padding():
    q, low, high, full = make(2, 2, 3, 130, 16)
    wide = jnp.pad(low, ((0, 0), (0, 0), (0, 70), (0, 0))), jnp.pad(high, ((0, 0), (0, 0), (0, 70), (0, 0)))
    whole = bound_scores(q, *wide, full, impl="native")
    for row in range(2):
        one = slice(row, row + 1)
        np.testing.assert_array_equal(bound_scores(q[one], low[one], high[one], full[one], impl="native"), whole[one, ..., :130])


def test_other_head_dimensions_are_xlas():
    operands = make(1, 2, 3, 5, 13)
    np.testing.assert_array_equal(bound_scores(*operands), bound_scores(*operands, impl="xla"))
    with pytest.raises(ValueError, match="multiples of 16, got 13"):
        bound_scores(*operands, impl="native")


def test_shapes_that_do_not_fit_are_refused():
    q, low, high, full = make(1, 2, 3, 5, 8)
    with pytest.raises(ValueError, match=r"low and high \[b, h, p, d\]"):
        api._check(q[:, :1], low, high, full)
    with pytest.raises(ValueError, match="pages of each head"):
        api._check(q, low, high, full[:, :1])
