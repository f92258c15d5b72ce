"""Ada-KV with the release's safeguard: the worked example and the transcription on the toy model."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate import AdaptiveRounded
from kvjax.score import MaxPool
from kvjax.view import Ranking
from tests.methods.simulation import kept_by, prompt_arrays, same_kept
from tests.reference import adaptive
from tests.reference.highest import highest
from tests.reference.pooling import max_pool
from tests.reference.window_attention import scores_of_rows

U = np.array([[0.9, 0.8, 0.7, 0.1], [0.3, 0.2, 0.06, 0.05]])
W = 8


@pytest.mark.parametrize(("alpha", "budgets"), [(0.0, [3, 1]), (0.2, [2, 1]), (0.5, [2, 2])])
def test_e17(alpha, budgets):
    u = jnp.asarray(U, jnp.float32)[None, None]
    yes = jnp.ones(u.shape, bool)
    pos = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32), u.shape)
    ranking = Ranking(scores=u, protected=~yes, valid=yes, pos=pos)
    got = AdaptiveRounded(alpha)(ranking, jnp.asarray([2], jnp.int32))[0, 0].tolist()
    assert got == budgets == adaptive.adaptive_rounded(U, 2, alpha=alpha).tolist()


@pytest.mark.parametrize("alpha", [0.2, 0.5])
@pytest.mark.parametrize("budget", [12, 25, 50])
def test_what_a_prompt_keeps(lm, pre, prompt, alpha, budget):
    policy = kvjax.methods.adakv(budget=budget, window=W, pool=MaxPool(7), alpha=alpha, rounded=True)
    assert not policy.allocate.exact
    want = []
    for x in prompt_arrays(lm, prompt):
        u = scores_of_rows(x.rows(W), window=W, pool=max_pool, size=7)
        counts = adaptive.adaptive_rounded(u, budget - W, alpha=alpha)
        want.append([np.append(highest(u[h], c), np.arange(90 - W, 90)) for h, c in enumerate(counts)])
    same_kept(kept_by(kvjax.compress(pre, policy)), want)


def test_at_alpha_1_it_is_snapkv(pre):
    ours = kvjax.methods.adakv(budget=25, window=W, alpha=1.0, rounded=True)
    same_kept(kept_by(kvjax.compress(pre, ours)), kept_by(kvjax.compress(pre, kvjax.methods.snapkv(budget=25, window=W))))
