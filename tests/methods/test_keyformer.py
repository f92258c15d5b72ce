"""Keyformer: its worked example, the transcription with the library's own noise, and its reduction to H2O."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import Tempered
from kvjax.evidence.reduce import RowsAt
from kvjax.evidence.tempered import tempered
from kvjax.noise import gumbel_at
from tests.conftest import ids_of
from tests.methods.simulation import decodes_as, kept_by, prefilled, prompt_arrays, same_kept
from tests.reference import keyformer
from tests.reference.decode_head import as_logits
from tests.reference.softmax import softmax

BUDGET = 24


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


@pytest.mark.parametrize(("tau", "noise", "p"), [
    (1.0, [0, 0, 0, 0], [0.6439, 0.2369, 0.0871, 0.0321]),
    (1.5, [0, 0, 0, 0], [0.5229, 0.2685, 0.1378, 0.0708]),
    (1.0, [0, 0, 1.5, 0], [0.4940, 0.1817, 0.2996, 0.0246]),
])  # fmt: skip
def test_e6(tau, noise, p):
    row = jnp.asarray(softmax(np.array([2.0, 1.0, 0.0, -1.0])), jnp.float32)[None, None, None, None]
    got = tempered(row, row > 0, jnp.asarray(noise, jnp.float32), jnp.full((1, 1), tau))
    np.testing.assert_allclose(got[0, 0, 0, 0], p, atol=5e-5)


def test_no_noise_brings_back_what_is_not_seen():
    row = jnp.asarray([[[[[0.5, 0.0, 0.5]]]]])
    assert tempered(row, row > 0, jnp.asarray([0.0, 1e3, 0.0]), jnp.ones((1, 1)))[0, 0, 0, 0, 1] == 0


def noise_of(seed, layer, head, t):
    """ξ [g, query, key] of one KV head with two query heads."""
    heads = 2 * head + np.arange(2)[:, None, None]
    return np.asarray(gumbel_at(seed, layer, heads, np.arange(t)[:, None], np.arange(t)), np.float64)


def test_prompt_and_64_steps(lm, prompt, layers):
    policy = kvjax.methods.keyformer(budget=BUDGET, seed=5)
    rules = prefilled(
        layers, lambda layer, head: keyformer.Decoding(BUDGET, int(0.3 * BUDGET), noise_of(5, layer, head, 154)), as_logits
    )
    decodes_as(lm, kvjax.prefill(lm, prompt, needs=policy), policy, layers, rules, ids_of(64, 3), as_logits)


def test_scores_of_the_prompt(pre, layers):
    scores = kvjax.score_prompt(pre, kvjax.methods.keyformer(budget=BUDGET)).rows[0].scores
    seen = np.tril(np.ones((90, 90), bool))
    for layer, x in enumerate(layers):
        for h in range(2):
            z = np.einsum("gtd,nd->gtn", x.q[h].astype(np.float64), x.k[h]) / 4
            p = softmax(np.where(seen, z + noise_of(0, layer, h, 90), -np.inf))
            np.testing.assert_allclose(scores[layer, 0, h, :90], p.sum(1).mean(0), rtol=1e-4, atol=1e-5)


def test_without_noise_and_slope_it_is_h2o(lm, prompt):
    ours = kvjax.methods.keyformer(budget=BUDGET, recent_share=0.5, noise=False, slope=0.0)
    theirs = kvjax.methods.h2o(budget=BUDGET)
    pre, held = kvjax.prefill(lm, prompt, needs=[ours, theirs]), []
    for policy in (ours, theirs):
        cache = kvjax.compress(pre, policy)
        held.append([kept_by(cache), kept_by(kvjax.extend(lm, cache, ids_of(64, 3), policy, block=1).cache)])
    for one, other in zip(*held, strict=True):
        same_kept(one, other)


def test_the_temperature_rises_with_the_steps():
    """At a steep slope rows flatten: the mass a step gives to the best key falls."""
    row = jnp.asarray([[[[[0.9, 0.1]]]]])
    flat = [tempered(row, row > 0, 0.0, jnp.full((1, 1), 1 + 0.5 * s))[0, 0, 0, 0, 0] for s in range(4)]
    assert (np.diff(flat) < 0).all()


def test_the_temperature_ends_at_2():
    """Row [.8, .2] at τ 1, 1.5, 2 and, five steps of .5 on, 2: of odds 4, 4^(2/3), 2 and 2."""
    row, keys = jnp.asarray([[[[[0.8, 0.2]]]]]), jnp.arange(2, dtype=jnp.int32)[None, None]
    got = [
        Tempered(seed=None, slope=0.5).of_rows_at(row, keys[0, :, :1], row > 0, RowsAt(keys=keys, steps=jnp.asarray([[step]])))
        for step in (0, 1, 2, 5)
    ]
    odds = np.array([4, 4 ** (2 / 3), 2, 2])
    np.testing.assert_allclose([float(x[0, 0, 0, 0]) for x in got], odds / (1 + odds), rtol=1e-6)
    assert [keyformer.tau_code(step) for step in (0, 50, 100, 500)] == [1, 1.5, 2, 2]


def test_a_prefill_serves_its_own_seed_alone(lm, prompt):
    one, other = kvjax.methods.keyformer(budget=BUDGET), kvjax.methods.keyformer(budget=BUDGET, seed=1)
    pre = kvjax.prefill(lm, prompt, needs=one)
    with pytest.raises(ValueError, match="did not record"):
        kvjax.compress(pre, other)
    with pytest.raises(ValueError, match="differ only in numbers"):
        kvjax.prefill(lm, prompt, needs=[one, other])
    assert Tempered(seed=0) == Tempered(seed=0)
