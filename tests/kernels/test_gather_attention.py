"""Every implementation of attention over listed slots against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels import gather_attention as op
from kvjax.kernels.gather_attention import api, shapes, xla

from . import oracle
from .test_ragged_attention import close

#: counts [b][h], longest list, slots of the pool, g, d
CASES = {
    "one slot": ([[1]], 1, 9, 1, 16),
    "empty beside full": ([[0, 5, 600]], 600, 700, 2, 16),
    "all empty": ([[0, 0]], 3, 9, 2, 16),
    "skewed": ([[3, 1300], [512, 0], [511, 513]], 1300, 1400, 3, 16),
}


def make(counts, m, slots, g, d, dtype="float32", seed=0):
    """Operands: lists in any order, NaN in every slot that none names, slots of no pool behind each list's end."""
    rng = np.random.default_rng(seed)
    counts = np.array(counts, np.int32)
    listed = np.full((*counts.shape, m), 2**31 - 1, np.int32)
    k, v = np.full((2, slots, d), np.nan)
    for at in np.ndindex(counts.shape):
        named = rng.permutation(slots)[: counts[at]]
        listed[at][: counts[at]] = named
        k[named], v[named] = rng.normal(size=(2, counts[at], d))
    q = rng.normal(size=(*counts.shape, g, 1, d))
    return [jnp.asarray(x, dtype) for x in (q, k, v)] + [jnp.asarray(listed), jnp.asarray(counts)]


def wanted(q, k, v, listed, counts, bias=None):
    """(out, lse) query by query."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    bias = np.zeros(len(k)) if bias is None else np.asarray(bias, np.float64)
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:-1])
    for at in np.ndindex(q.shape[:-1]):
        named = np.asarray(listed)[at[:2]][: counts[at[:2]]]
        out[at], lse[at], _ = oracle.softmax_row(q[at], k[named], v[named], bias[named])
    return out, lse


def check(got, operands, dtype):
    """What an implementation gave, against the oracle."""
    assert got[0].dtype == dtype and got[1].dtype == jnp.float32
    for found, right in zip(got, wanted(*operands), strict=True):
        close(found, right, dtype)


@pytest.mark.parametrize("case, dtype", [(case, "float32") for case in CASES] + [("skewed", "bfloat16")])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_matches_float64(impl, case, dtype):
    operands = make(*CASES[case], dtype)
    check(op.gather_attention(*operands, impl=impl), operands, dtype)


def biases(slots: int):
    """A bias for each slot, some of them -inf."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(slots) < 0.1, -np.inf, 2 * rng.normal(size=slots)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_a_bias_is_added_to_its_slots_scores(impl, dtype):
    operands = make(*CASES["skewed"], dtype)
    bias = biases(len(operands[1]))
    check(op.gather_attention(*operands, bias=jnp.asarray(bias), impl=impl), (*operands, bias), dtype)


@pytest.mark.parametrize("name", shapes.SMALL)
def test_real_shapes(name):
    shape = shapes.SMALL[name]
    operands = make(shape.counts, shape.m, shape.slots, shape.g, shape.d)
    check(op.gather_attention(*operands), operands, "float32")


@pytest.mark.parametrize("block", [1, 100, 512])
def test_any_tiling_is_the_same_function(block):
    operands = make([[0, 37, 8], [200, 1, 63]], 200, 300, 2, 8)
    check(xla.attention(*operands, config=xla.Config(block)), operands, "float32")


def test_order_of_a_list_does_not_matter():
    q, k, v, listed, counts = make([[200, 200]], 200, 300, 2, 8)
    one, other = (op.gather_attention(q, k, v, order, counts) for order in (listed, listed[..., ::-1]))
    np.testing.assert_allclose(one[0], other[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(one[1], other[1], rtol=2e-6)


def test_lists_are_data():
    traced = []

    @jax.jit
    def run(*operands):
        traced.append(1)
        return op.gather_attention(*operands)

    for seed, counts in enumerate(([[300, 40]], [[0, 40]], [[17, 0]])):
        operands = make(counts, 300, 400, 2, 8, seed=seed)
        check(run(*operands), operands, "float32")
    assert len(traced) == 1


def test_a_count_beyond_the_list_reads_the_list():
    q, k, v, listed, counts = operands = make([[40, 40]], 40, 60, 2, 8)
    check(op.gather_attention(q, k, v, listed, counts + 9), operands, "float32")


def test_refusals_name_the_way_out():
    q, k, v, listed, counts = make([[30, 7]], 30, 40, 2, 8)
    with pytest.raises(ValueError, match="xla, reference, triton"):
        op.gather_attention(q, k, v, listed, counts, impl="cudnn")
    with pytest.raises(ValueError, match="(?s)'triton'.*cannot run.*NVIDIA GPU.*xla, reference: run anywhere"):
        op.gather_attention(q, k, v, listed, counts, impl="triton")
    # Under the run-time type checks of this suite the annotations speak first.
    with pytest.raises(ValueError, match="1, d"):
        api._check(jnp.tile(q, (1, 1, 1, 2, 1)), k, v, listed, counts)
    with pytest.raises(ValueError, match="slots"):
        api._check(q, k, v, listed[:, :1], counts)
