"""Bits of what a cache holds: codes as they are, the model's numbers as 16 bits, alike for models of 32 bits and of 16."""

import jax
import pytest

import kvjax
from experiments.stored_bits import half_nbytes, stored_bits
from kvjax.codec import Affine
from kvjax.encode import Slide, Stored, Windows
from tests.conftest import ids_of, policy_of, prepared

#: One of each kind: raw, codes beside a window, tiers, codes by layer, parts of keys, codes in a host's memory, statistics,
#: queries of a window, bounds of pages and of clusters, prompts elsewhere with what stands for them on the device.
KINDS = (
    "snapkv", "kivi", "mikv", "asymkv", "think", "hcattention", "turboquant", "h2o", "tova", "quest", "mpcache", "shadowkv",
    "infinigen", "omnikv", "pqcache", "magicpig", "fasa", "fastdecode", "heterocache",
)  # fmt: skip
LAYERS, HEADS, D = 3, 2, 16


@pytest.fixture(scope="module")
def in_16_bits(lm):
    return lm.replace(params=jax.tree.map(lambda x: x.astype("bfloat16"), lm.params))


@pytest.mark.parametrize("name", KINDS)
def test_a_model_of_32_bits_counts_as_one_of_16(lm, in_16_bits, name):
    policy = policy_of(name)

    def compressed(model):
        return kvjax.compress(prepared(model, kvjax.prefill(model, ids_of(90), needs=policy), name), policy)

    wide, narrow = compressed(lm), compressed(in_16_bits)
    assert half_nbytes(in_16_bits, narrow, policy) == narrow.nbytes + narrow.host_nbytes
    assert half_nbytes(lm, wide, policy) == narrow.nbytes + narrow.host_nbytes < wide.nbytes + wide.host_nbytes or name in CODES
    assert stored_bits(lm, wide, policy) == stored_bits(in_16_bits, narrow, policy)


#: Nothing of these is in the model's dtype.
CODES = ("turboquant",)


def test_codes_count_as_they_are_and_an_exact_window_as_16_bits(lm, pre):
    """8 bits and two float16 numbers for 16 channels: 10 bits. Beside them 32 exact keys and values, and the step's own, a head."""
    codec = Affine(bits=8, group=16)
    coded = kvjax.Policy(encode=Stored(keys=codec, values=codec))
    cache = kvjax.compress(pre, coded)
    bookkeeping = cache.nbytes - 2 * cache.slots * (16 + 2 + 2)
    assert half_nbytes(lm, cache, coded) == cache.nbytes and 0 <= bookkeeping <= 4 * 4 * LAYERS * HEADS
    assert stored_bits(lm, cache, coded) == 8 * cache.nbytes / (2 * D * 90 * LAYERS * HEADS)
    exact = kvjax.Policy(encode=Stored(keys=codec, values=codec, window=Windows(Slide(32), Slide(32))))
    cache = kvjax.compress(pre, exact)
    assert cache.nbytes - half_nbytes(lm, cache, exact) == 2 * LAYERS * HEADS * 33 * D * 2


def test_tokens_elsewhere_are_held(lm):
    policy = policy_of("fastdecode")
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(90), needs=policy), policy)
    assert cache.held.sum() == 90 * LAYERS * HEADS > cache.lengths.sum()
    assert stored_bits(lm, cache, policy) == 8 * half_nbytes(lm, cache, policy) / (2 * D * 90 * LAYERS * HEADS)
