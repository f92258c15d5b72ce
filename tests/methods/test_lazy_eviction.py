"""LazyEviction: its worked example, the transcription on the toy model, prompt and 64 steps."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence.reduce import HitGaps, Hits
from kvjax.score.recurrence import importance, last_and_longest
from tests.conftest import ids_of
from tests.methods.simulation import decodes_as, prefilled, prompt_arrays
from tests.reference import lazy_eviction as lazy

TS, MRI = jnp.asarray([19, 10, 5, 2, 18]), jnp.asarray([1, 8, 3, 2, 0])


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


def test_e7_intervals():
    """Started at 0; (TS, MRI) after steps 1, 3 and 7."""
    reduction, trace = HitGaps(0.1), {}
    hits = reduction.empty((1, 1, 1, 1))
    for t, a in enumerate([0.2, 0, 0.2, 0, 0, 0, 0.3], start=1):
        p = jnp.full((1, 1, 1, 1, 1), a, jnp.float32)
        hits = reduction.join(hits, reduction.of_rows(p, jnp.asarray([[t]], jnp.int32), jnp.ones(p.shape, bool)))
        trace[t] = tuple(x.item() for x in last_and_longest(hits, jnp.zeros((1, 1, 1, 1), jnp.int32)))
    assert trace[1] == (1, 1) and trace[3] == (3, 2) and trace[7] == (7, 4)


def test_e7_ranking():
    got = importance(TS, MRI, jnp.full(5, 20))
    np.testing.assert_allclose(got, [1.5379, 0.4472, 0.2518, 0.5381, 0], atol=5e-5)
    assert np.sort(np.argsort(-got)[:2]).tolist() == [0, 3]


def test_never_hit_is_worth_nothing():
    never = Hits(first=jnp.asarray([-1]), last=jnp.asarray([-1]), gap=jnp.asarray([0]))
    assert [int(x[0]) for x in last_and_longest(never, jnp.asarray([6]))] == [6, 0]
    assert importance(jnp.asarray([6, 6]), jnp.asarray([0, 0]), jnp.asarray([6, 7])).tolist() == [0, 0]


def test_a_hit_by_its_own_row_is_a_period_of_1():
    """Created at 6 and hit there alone: it starts at 5. At step 8 it is worth 2 σ(-2) + 1, as two periods have passed."""
    own = Hits(first=jnp.asarray([6]), last=jnp.asarray([6]), gap=jnp.asarray([0]))
    ts, mri = last_and_longest(own, jnp.asarray([5]))
    assert (int(ts[0]), int(mri[0])) == (6, 1)
    np.testing.assert_allclose(importance(ts, mri, jnp.asarray([8])), [1.2384], atol=5e-5)


def test_the_release_has_one_more_in_the_exponent():
    ts, mri, now = jnp.asarray([18, 2]), jnp.asarray([10, 2]), jnp.asarray([20, 20])
    np.testing.assert_allclose(importance(ts, mri, now), [0.9006, 0.5381], atol=5e-5)
    np.testing.assert_allclose(importance(ts, mri, now, 1.0), [0.4632, 0.5380], atol=5e-5)


@pytest.mark.parametrize("after_prefill", [True, False])
def test_prompt_and_64_steps(lm, prompt, layers, after_prefill):
    policy = kvjax.methods.lazy_eviction(budget=30, window=8, alpha=0.02, after_prefill=after_prefill)
    rules = prefilled(layers, lambda layer, head: lazy.Decoding(30, 8, alpha=0.02, after_prefill=after_prefill))
    decodes_as(lm, kvjax.prefill(lm, prompt, needs=policy), policy, layers, rules, ids_of(64, 3))


def test_a_window_of_one_acts_every_step(lm, prompt, layers):
    policy = kvjax.methods.lazy_eviction(budget=30, window=1, alpha=0.02)
    rules = prefilled(layers, lambda layer, head: lazy.Decoding(30, 1, alpha=0.02, after_prefill=True))
    decodes_as(lm, kvjax.prefill(lm, prompt, needs=policy), policy, layers, rules, ids_of(24, 3), stops=(1, 2, 24))


def test_scores_of_the_prompt(lm, prompt, layers):
    policy = kvjax.methods.lazy_eviction(budget=30, alpha=0.02)
    scores = kvjax.score_prompt(kvjax.prefill(lm, prompt, needs=policy), policy).rows[0].scores
    rules = prefilled(layers, lambda layer, head: lazy.Decoding(200, 8, alpha=0.02))
    for layer in range(3):
        for h, rule in enumerate(rules[layer]):
            np.testing.assert_allclose(scores[layer, 0, h, :90], lazy.importance(rule.ts, rule.mri, 89), atol=1e-5)
