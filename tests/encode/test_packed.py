"""Attention from packed codes is what scores, softmax and weighted sums taken apart are."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.attend_context import AttendContext
from kvjax.codec import Affine
from kvjax.encode import BlockFlush, Clamped, Slide, Stored, Windows
from kvjax.encode.packed import packed_sides
from kvjax.kernels.ragged_attention import log_denominator, probabilities
from tests.conftest import ids_of, policy_of

PAGED, FOUR, TWO = Affine(4, 8, "token"), Affine(4, 8), Affine(2, 16, store="bfloat16")
STORAGES = {
    "kivi": Stored(keys=PAGED, values=FOUR, window=Windows(BlockFlush(16), Slide(5)), sinks=3),
    "a window for keys alone": Stored(keys=FOUR, values=TWO, window=Windows(keys=Slide(7))),
    "a window for values alone": Stored(keys=TWO, values=FOUR, window=Windows(values=Slide(0))),
    "no window": Stored(keys=FOUR, values=TWO),
    "odd codes": Stored(keys=Affine(3, 16), values=Affine(1, 16)),
}
APART = {
    "dense values": Stored(keys=FOUR),
    "values along tokens": Stored(keys=FOUR, values=PAGED, window=BlockFlush(16)),
    "a step a number": Stored(keys=Affine(4, 1, "token"), values=FOUR),
}


def attended(lm, encode, layer=1):
    """A batch of two rows a few steps on, as one layer reads it: (queries, cache, context)."""
    policy = policy_of("adakv").replace(encode=encode)
    pre = kvjax.prefill(lm, [ids_of(90), ids_of(31, seed=1)], needs=policy)
    cache = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=3, stop=()).cache
    where = dict(positions=cache.position[:, None] - 1, window=None, padded_slots=128, encode=encode, rope=lm.decoder.rope)
    q = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 2, 1, 16)), jnp.float32)
    return q, cache, AttendContext(layer=layer, **where)


@pytest.mark.parametrize("name", STORAGES)
def test_one_kernel_is_its_parts(lm, name):
    encode = STORAGES[name]
    q, cache, context = attended(lm, encode)
    assert packed_sides(encode.codecs, cache, 1) is not None
    scores = encode.scores(q, cache, context)
    lse = log_denominator(scores)
    out = encode.weighted_sum(cache, context, probabilities(scores, lse), 16)
    got, got_lse = encode.attention(q, cache, context)
    np.testing.assert_allclose(got, out, atol=1e-5)
    np.testing.assert_allclose(got_lse, lse, atol=1e-5)


@pytest.mark.parametrize("name", APART)
def test_other_storages_are_read_in_parts(lm, pre, name):
    policy = kvjax.Policy(encode=APART[name])
    cache = kvjax.compress(pre, policy)
    assert packed_sides(policy.encode.codecs, cache, 0) is None


def test_keys_turned_at_reading_are_read_in_parts(lm):
    """Codes of keys that are not rotated yet."""
    encode = Stored(keys=FOUR, values=FOUR, positions=Clamped(limit=40))
    q, cache, context = attended(lm, encode)
    got, _ = encode.attention(q, cache, context)
    scores = encode.scores(q, cache, context)
    want = encode.weighted_sum(cache, context, probabilities(scores, log_denominator(scores)), 16)
    np.testing.assert_array_equal(got, want)
