"""Every implementation of quadratic forms against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.quadratic_forms import api, quadratic_forms

#: b, h, g, n, d
CASES = {
    "one key": (1, 1, 1, 1, 8),
    "no multiple of a block": (2, 2, 3, 130, 16),
    "odd sizes": (1, 3, 2, 77, 13),
    "smollm2's heads": (1, 3, 3, 256, 64),
}


def make(b, h, g, n, d, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    k, a, vector = (rng.normal(size=size) for size in ((b, h, n, d), (b, h, g, d, d), (b, h, g, d)))
    return jnp.asarray(k, dtype), jnp.asarray(a, jnp.float32), jnp.asarray(vector, jnp.float32)


@pytest.mark.parametrize("case, dtype", [(c, "float32") for c in CASES] + [("odd sizes", d) for d in ("bfloat16", "float16")])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
@pytest.mark.usefixtures("native")
def test_matches_float64(impl, case, dtype):
    k, a, b = make(*CASES[case], dtype)
    wide, matrices, vectors = (np.asarray(x, np.float64) for x in (k, a, b))
    want = np.einsum("bhnd,bhgdc,bhnc->bhgn", wide, matrices, wide) + np.einsum("bhnd,bhgd->bhgn", wide, vectors)
    got = quadratic_forms(k, a, b, impl=impl)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=3e-5 * k.shape[3], rtol=1e-5)


@pytest.mark.usefixtures("native")
def test_a_key_is_the_same_to_the_bit_whatever_stands_beside_it():
    k, a, b = make(2, 2, 3, 200, 16)
    whole = quadratic_forms(k, a, b, impl="native")
    for row in range(2):
        one = slice(row, row + 1)
        np.testing.assert_array_equal(quadratic_forms(k[one], a[one], b[one], impl="native"), whole[one])
    np.testing.assert_array_equal(quadratic_forms(k[:, :, :130], a, b, impl="native"), whole[..., :130])


@pytest.mark.usefixtures("native")
def test_its_gradient_is_that_of_the_formula():
    k, a, b = make(*CASES["odd sizes"])
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 2, 77)), jnp.float32)

    def loss(impl):
        return jax.grad(lambda *x: (quadratic_forms(*x, impl=impl) * weights).sum(), argnums=(0, 1, 2))(k, a, b)

    for mine, theirs in zip(loss(None), loss("reference"), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-3)


def test_shapes_that_do_not_fit_are_refused():
    k, a, b = make(1, 2, 3, 5, 8)
    with pytest.raises(ValueError, match=r"a \[b, h, g, d, d\]"):
        api._check(k, a[:, :1], b)
