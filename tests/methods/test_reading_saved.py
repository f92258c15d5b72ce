"""Conversations whose prompts are read a little at a time come back from their files, what was elsewhere included."""

import jax
import numpy as np
import pytest

import kvjax
from tests.conftest import policy_of


@pytest.mark.parametrize("name", ["fasa", "infinigen", "mpcache", "omnikv", "shadowkv"])
def test_a_conversation_comes_back_and_goes_on(lm, pre, tmp_path, name):
    policy = policy_of(name)
    cache = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=3, stop=()).cache
    again = kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy)
    for one, other in zip(jax.tree.leaves(cache), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding.memory_kind == other.sharding.memory_kind
    want, got = (kvjax.decode(lm, c, policy, max_new_tokens=5, stop=(), return_logits=True) for c in (cache, again))
    np.testing.assert_array_equal(want.logits, got.logits)
