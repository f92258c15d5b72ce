"""Caches whose prompts are read a little at a time: back from their files, what was elsewhere included; not under other sizes."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import kvjax
from kvjax.decode.headroom import check_form
from kvjax.encode import OnDevice
from kvjax.far_blocks import FarSizes
from kvjax.retrieve import TwoLevels
from kvjax.retrieve.clusters import Clusters
from tests.conftest import ids_of, policy_of


@pytest.mark.parametrize("name", ["fasa", "infinigen", "magicpig", "mpcache", "omnikv", "pqcache", "shadowkv"])
def test_a_conversation_comes_back_and_goes_on(lm, pre, tmp_path, name):
    policy = policy_of(name)
    cache = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=3, stop=()).cache
    again = kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy)
    for one, other in zip(jax.tree.leaves(cache), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding.memory_kind == other.sharding.memory_kind
    want, got = (kvjax.decode(lm, c, policy, max_new_tokens=5, stop=(), return_logits=True) for c in (cache, again))
    np.testing.assert_array_equal(want.logits, got.logits)


def clusters(of):
    """One pivot a layer, the other head its satellite, but for one layer of anchors."""
    role = [[1, 1] if layer == of else [3, 4] for layer in range(3)]
    return Clusters.of(role, [[-1, -1] if layer == of else [0, 0] for layer in range(3)])


#: What was compressed with, what is decoded with, of one retriever.
OTHERS = {
    "omnikv, filters": ("omnikv", {"filters": (0,), "waiting": 0}, {"filters": (0, 1), "waiting": 0}),
    "omnikv, waiting": ("omnikv", {"filters": (0,), "waiting": 0}, {"filters": (0,), "waiting": 1}),
    "fasa, layers": ("fasa", {"home": OnDevice(), "skip_layers": 1}, {"home": OnDevice(), "skip_layers": 2}),
    "fasa, channels": ("fasa", {"home": OnDevice()}, {"home": OnDevice(), "origin": "another calibration"}),
    "heterocache, clusters": ("heterocache", {"clusters": clusters(1)}, {"clusters": clusters(2)}),
    "heterocache, window": ("heterocache", {"w": 2}, {"w": 5}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_cache_made_for_other_layers_or_heads_is_refused(lm, pre, name):
    method, one, other = OTHERS[name]
    policy = policy_of(method, 0.7)
    made, asked = (policy.replace(retrieve=policy.retrieve.replace(**changes)) for changes in (one, other))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, made), asked, max_new_tokens=2, stop=())


#: Of one retriever, what two caches were compressed with that cannot be one batch.
APART = {
    "fasa": ({"home": OnDevice(), "skip_layers": 1}, {"home": OnDevice(), "skip_layers": 2}),
    "heterocache": ({"w": 2}, {"w": 5}),
    "infinigen": ({"skip_layers": 1}, {"skip_layers": 2}),
    "infllm": ({"sizes": FarSizes(24, 4, 8, 2, 2)}, {"sizes": FarSizes(24, 4, 4, 2, 2)}),
    "magicpig": ({"dense": (0,)}, {"dense": (0, 1)}),
    "mpcache": ({"large": 16, "small": 16}, {"large": 16, "small": 8}),
    "omnikv": ({"filters": (0,), "waiting": 0}, {"filters": (1,), "waiting": 0}),
    "pqcache": ({"bits": 4}, {"bits": 3}),
    "quest": ({"page_size": 16}, {"page_size": 8}),
    "shadowkv": ({"chunk": 8}, {"chunk": 4}),
}


@pytest.mark.parametrize("name", APART)
def test_caches_made_for_other_sizes_are_not_stacked(pre, name):
    policy = policy_of(name, 0.7)
    made = [kvjax.compress(pre, policy.replace(retrieve=policy.retrieve.replace(**changes))) for changes in APART[name]]
    for caches in (made, made[::-1]):
        with pytest.raises(ValueError, match="compress all of them with one policy"):
            kvjax.stack(caches)
    assert kvjax.stack([made[0], made[0]]).held.sum() == 2 * made[0].held.sum()


def test_a_cache_made_of_other_blocks_is_refused(lm, pre):
    policy = policy_of("infllm")
    cache, sizes = kvjax.compress(pre, policy), policy.retrieve.sizes
    for changes in ({"block": 4}, {"initial": 8}, {"representatives": 1}):
        other = policy.replace(retrieve=policy.retrieve.replace(sizes=replace(sizes, **changes)))
        with pytest.raises(ValueError, match="compress it with this policy"):
            kvjax.decode(lm, cache, other, max_new_tokens=2, stop=())
    more = policy.replace(retrieve=policy.retrieve.replace(sizes=replace(sizes, top=4)))
    assert kvjax.decode(lm, cache, more, max_new_tokens=2, stop=()).tokens.shape == (1, 2)


#: Methods whose queries read what `compress` made for them.
READERS = ["fasa", "fastdecode", "infinigen", "infllm", "magicpig", "mpcache", "neo", "omnikv", "pqcache", "quest", "shadowkv"]


@pytest.mark.parametrize("name", READERS)
def test_a_cache_of_another_policy_is_refused_before_tracing(lm, pre, name):
    policy = policy_of(name, 0.7)
    cache = kvjax.compress(pre, kvjax.Policy(encode=policy.encode))
    with pytest.raises(ValueError, match="compress it with this policy"):
        check_form(lm.decoder, cache, policy)


def test_a_larger_share_of_clusters_than_the_cache_has_lists_for_is_refused(lm):
    few, many = (kvjax.Policy(retrieve=TwoLevels(large=16, small=8, parts=(1.0, part))) for part in (0.1, 1.0))
    long = kvjax.prefill(lm, ids_of(600), needs=few)
    with pytest.raises(ValueError, match="lists of 64 clusters, a share of 1.0 may choose 75: compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(long, few), many, max_new_tokens=2, stop=())
    assert kvjax.decode(lm, kvjax.compress(long, many), few, max_new_tokens=2, stop=()).tokens.shape == (1, 2)


def test_bounds_that_layers_shared_are_too_few_for_each_alone(lm, pre):
    levels = dict(large=16, small=8, parts=(0.5, 0.4))
    shared, alone = (kvjax.Policy(retrieve=TwoLevels(**levels, share=share)) for share in (2, 1))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, shared), alone, max_new_tokens=2, stop=())
