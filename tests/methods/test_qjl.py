"""QJL: what is sketched apart, its bits, and its estimates."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

import kvjax
from kvjax.codec import AsIs, OutlierChannels, SignSketch
from kvjax.codec.outlier_channels import largest_channels
from tests.reference import qjl as reference


def test_the_largest_channels_of_a_page_are_apart():
    x = jnp.ones((1, 1, 32, 16)).at[..., 3].set(9.0).at[..., 11].set(-7.0)
    np.testing.assert_array_equal(largest_channels(x, 2), [[[3, 11]]])
    np.testing.assert_array_equal(largest_channels(jnp.ones((1, 1, 8, 16)), 3), [[[0, 1, 2]]])  # ties to the lower one


def test_channels_apart_have_a_norm_of_their_own():
    """A channel a hundred times as large costs the others nothing."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 1, 64, 64)).astype(np.float32)
    x[..., 5] *= 100
    rest = np.delete(np.arange(64), 5)
    sketch = SignSketch(ratio=4)
    apart = OutlierChannels(sketch, sketch, count=1, size=32)
    lost = [np.abs(np.asarray(c.decode(c.encode(jnp.asarray(x)), jnp.float32)) - x)[..., rest].mean() for c in (sketch, apart)]
    assert lost[1] < 0.1 * lost[0]


def test_a_score_is_the_papers_sum():
    """sqrt(π/2) / m · |k| · <S q, sign(S k)>."""
    q, k = np.random.default_rng(1).standard_normal((2, 16))
    sketch = SignSketch(ratio=2, seed=4)
    s = reference.orthogonal_rows(4, 32, 16)
    want = np.sqrt(np.pi / 2) / 32 * np.linalg.norm(k) * (s @ q @ np.where(s @ k >= 0, 1, -1))
    found = sketch.decode(sketch.encode(jnp.asarray(k, jnp.float32)[None, None, None]), jnp.float32)[0, 0, 0]
    np.testing.assert_allclose(found @ q, want, rtol=1e-3)


def test_bits():
    """128 channels: (m + 16) / d, and 3 for values; the sketch of outliers and its channels beside it."""
    encode = kvjax.methods.qjl(outliers=0).encode
    assert (encode.keys.bits_a_number(128), encode.values.bits_a_number(128)) == (Fraction(256 + 16, 128), 3)
    assert kvjax.methods.qjl().encode.keys.bits_a_number(128) == Fraction(2 * (256 + 16), 128) + Fraction(8 * 8, 32 * 128)


def test_keys_are_coded_in_blocks_and_values_one_by_one(lm):
    """R = 16: of 40 tokens 32 keys and 24 values are coded, of 47 one value more for each; at 48 the third block of keys."""
    policy = kvjax.methods.qjl(outliers=3, group=8, value_group=8, buffer=16)
    for length, keys, values in ((15, 0, 0), (40, 32, 24), (47, 32, 31), (48, 48, 32)):
        cache = kvjax.compress(kvjax.prefill(lm, list(range(length)), needs=policy), policy)
        assert [np.unique(tail.coded).tolist() for tail in cache.tails] == [[keys], [values]]
    out = kvjax.decode(lm, cache, policy, max_new_tokens=3, stop=())
    assert [np.unique(tail.coded).tolist() for tail in out.cache.tails] == [[48], [35]]


def test_more_projections_come_closer(lm, pre):
    full = kvjax.methods.full()
    how = dict(max_new_tokens=2, stop=(), return_logits=True)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, **how).logits[0, 1]
    errors = []
    for ratio in (1, 8, 64):
        policy = kvjax.methods.qjl(ratio=ratio, outliers=0, group=8, buffer=8)
        policy = policy.replace(encode=policy.encode.replace(values=AsIs()))
        out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, **how)
        errors.append(float(jnp.abs(out.logits[0, 1] - want).max()))
    assert errors == sorted(errors, reverse=True) and errors[2] < 0.5 * errors[0]


def test_prefill_is_exact(lm):
    policy = kvjax.methods.qjl(outliers=3, group=8, value_group=8, buffer=16)
    pre = kvjax.prefill(lm, list(range(40)), needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=1, stop=(), return_logits=True)
    np.testing.assert_allclose(out.logits[0, 0], pre.rows[0].logits, atol=1e-6)
    assert jax.tree.leaves(out.cache.k)[0].dtype == jnp.uint8
