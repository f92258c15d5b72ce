"""KVCompose against its reference: the worked example, options, the second pass on the toy model."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
from kvjax.allocate.composites import composites, layer_counts
from kvjax.score import GroupMean
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.reference import kvcompose
from tests.reference.attention import attention_rows
from tests.reference.test_examples_kvcompose import OWN


def counts(u: np.ndarray, total: int, lower: int = 0) -> list[int]:
    c = composites(jnp.asarray(u, jnp.float32)[:, None])
    return layer_counts(c, jnp.array([total]), jnp.array([lower]), c > -jnp.inf)[:, 0].tolist()


def test_a19f():
    u = kvcompose.shared(OWN)
    assert_allclose(composites(jnp.asarray(u, jnp.float32)[:, None])[:, 0], kvcompose.composites(u), rtol=1e-6)
    assert counts(u, 4) == [3, 1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lower", [0, 1, 3])
def test_counts(seed, lower):
    u = np.random.default_rng(seed).random((4, 2, 12)).round(1)
    for total in (12, 17, 48):
        want = kvcompose.layer_counts(kvcompose.composites(u.astype(np.float32)), total, lower=lower)
        assert counts(u, total, lower) == want.tolist()


def test_scores_of_rows():
    rows = np.random.default_rng(0).random((2, 3, 5, 7)).astype(np.float32)
    assert_allclose(GroupMean()(jnp.asarray(rows.max(2))[None])[0], kvcompose.own_scores(rows), rtol=1e-6)


def second_pass(lm, ids) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows [h, g, m, n] of the prompt read again on top of itself, over its own keys, values [h, n, d]) of each layer."""
    n = len(ids)
    return [(attention_rows(x.q, x.k)[:, :, n:, :n], x.v[:, :n]) for x in layers_of(lm, [*ids, *ids])]


@pytest.mark.parametrize("value_norm", [False, True])
@pytest.mark.parametrize("n", [90, 7])
def test_prompts(lm, n, value_norm):
    ids = ids_of(n, 3)
    rows, v = (np.stack(x) for x in zip(*second_pass(lm, ids), strict=True))
    own = np.stack([kvcompose.own_scores(x) for x in rows])
    u = kvcompose.shared(own, value_norm=np.linalg.norm(v, axis=-1) if value_norm else None)
    budget, lower = max(2, n // 3), 2
    policy = kvjax.methods.kvcompose(budget=budget, lower=lower, value_norm=value_norm)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids, needs=policy), policy)
    assert_allclose(np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0, :, :n], u, atol=2e-5)
    cache = kvjax.compress(pre, policy)
    for layer, want in enumerate(kvcompose.kept(u, 3 * budget, lower=lower)):
        for got, positions in zip(cache.kept(layer)[0], want, strict=True):
            assert_array_equal(got, positions)


@pytest.mark.parametrize("lower", [1, 9, 20])
def test_heads_for_themselves(lm, prompt, lower):
    policy = kvjax.methods.kvcompose(budget=20, structured=False, lower=lower)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, prompt, needs=policy), policy)
    u = np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0, :, :90]
    want = kvcompose.unstructured(u, 20 * 6, lower=lower)
    assert want.min() >= lower
    assert_array_equal(kvjax.compress(pre, policy).lengths[:, 0], want)


def test_one_layer_and_head_is_a_plain_top_k():
    u = np.random.default_rng(1).random((1, 1, 30))
    assert counts(u, 11) == [11]


def test_rows_are_as_they_are_alone(lm):
    policy, prompts = kvjax.methods.kvcompose(budget=0.4), [ids_of(n, n) for n in (90, 7, 130)]
    both = kvjax.compress(kvjax.second_pass(lm, kvjax.prefill(lm, prompts, needs=policy), policy), policy)
    for r, ids in enumerate(prompts):
        alone = kvjax.compress(kvjax.second_pass(lm, kvjax.prefill(lm, ids, needs=policy), policy), policy)
        for layer in range(3):
            for a, b in zip(both.kept(layer)[r], alone.kept(layer)[0], strict=True):
                assert_array_equal(a, b)


def test_a_prompt_must_fit_the_context_twice(lm):
    policy = kvjax.methods.kvcompose(budget=0.4)
    with pytest.raises(ValueError, match="context"):
        kvjax.second_pass(lm, kvjax.prefill(lm, ids_of(600), needs=policy), policy)
