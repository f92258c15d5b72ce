"""Blocks that are forgotten in training: worked numbers, masks, scores against a loop, generation, what the gradient rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.train import Frozen, forward, own_weights, stacked
from kvjax.train.collecting import advantages, best, block_scores, collecting, draw_blocks, forgotten, generate
from kvjax.train.learner import Moment
from kvjax.train.learners import NeuralGarbageCollection
from tests.conftest import ids_of, toy_config
from tests.train.conftest import texts

LEARNER = NeuralGarbageCollection(first=8, size=2, window=3, begin=0.5, prompts=2, rollouts=3)
TOKENS = jnp.asarray([ids_of(12, 1), ids_of(12, 2)], jnp.int32)


def test_advantages_are_the_worked_ones():
    np.testing.assert_allclose(advantages(jnp.float32([[1, 0, 0, 1, 0]])), [[0.6, -0.4, -0.4, 0.6, -0.4]], atol=1e-6)


def test_drawn_sets_have_the_worked_probability():
    """s = (1, 0, -1), two of three: {0, 2} is drawn with p = .244728, in whichever order."""
    scores = jnp.broadcast_to(jnp.float32([1, 0, -1]), (1, 60_000, 3))
    order, keep = draw_blocks(jax.random.key(0), scores, 2)
    assert (keep.sum(-1) == 2).all() and bool((best(order, 3) == keep).all())
    share = (keep[0] == jnp.array([True, False, True])).all(-1).mean()
    np.testing.assert_allclose(share, 0.244728, atol=0.006)


def test_scores_are_those_of_a_loop(lm):
    seen = {}

    def hook(layer, weights, inputs, attend):
        seen[layer] = inputs
        return attend(inputs), ()

    forward(lm.decoder, lm.params, TOKENS, hook=hook, remat=False)
    got = block_scores(seen[1], first=8, window=3, size=2)
    q, k = np.asarray(seen[1].q, np.float64), np.asarray(seen[1].k, np.float64)
    for b in range(2):
        total = np.zeros(8)
        for h, g, i in np.ndindex(2, 2, 3):
            z = k[b, h, : 6 + i] @ q[b, h, g, 5 + i] / 4
            total[: 6 + i] += np.exp(z - z.max()) / np.exp(z - z.max()).sum() / 12
        np.testing.assert_allclose(got[b], np.log(total.reshape(4, 2).mean(-1)), atol=1e-4)


def test_what_is_not_kept_is_hidden_from_later_queries_alone():
    bias = np.asarray(forgotten(jnp.array([[True, False]]), first=4, size=2, length=6))[0, 0, 0]
    assert (bias[:4] == 0).all() and (bias[4:, 2:4] == -np.inf).all() and (bias[4:, [0, 1, 4, 5]] == 0).all()


def test_a_masked_pass_is_decoding_from_a_cache_without_the_blocks(lm):
    """The blocks that attention ranks highest, kept by the served policy and by the mask: the same logits."""
    hook, ids = collecting(first=8, window=3, size=2), TOKENS[:1]
    _, scores = forward(lm.decoder, lm.params, ids, hook=hook, gates=jnp.ones((3, 1, 4), bool))
    keep = best(jax.lax.top_k(jnp.stack(scores), 2)[1], 4)
    x, _ = forward(lm.decoder, lm.params, ids, hook=hook, gates=keep)
    want = lm.decoder.unembed(lm.params, x)[0, 8:]
    policy = kvjax.methods.neural_garbage_collection(share=0.5, size=2, window=3, interval=64, after_prefill=True)
    cache = kvjax.compress(kvjax.prefill(lm, [ids[0, :8].tolist()], needs=policy), policy)
    assert (np.asarray(cache.lengths) == 4).all()
    got = kvjax.extend(lm, cache, [ids[0, 8:].tolist()], policy, return_logits=True).logits[0]
    np.testing.assert_allclose(got[:4], want, atol=1e-4)


def test_generated_tokens_are_the_models_own_and_the_rest_is_given(lm):
    def logits_of(tokens, at):
        x, _ = forward(lm.decoder, lm.params, tokens, remat=False)
        return lm.decoder.unembed(lm.params, jax.lax.dynamic_slice_in_dim(x, at, 1, axis=1))[:, 0]

    mine = jnp.broadcast_to(jnp.arange(12) >= 8, (2, 12)).at[:, 9].set(False)
    got = np.asarray(generate(logits_of, jax.random.key(0), TOKENS, mine, first=8, temperature=0.0))
    np.testing.assert_array_equal(got[:, [*range(8), 9]], np.asarray(TOKENS)[:, [*range(8), 9]])
    x, _ = forward(lm.decoder, lm.params, jnp.asarray(got), remat=False)
    likeliest = np.asarray(lm.decoder.unembed(lm.params, x)).argmax(-1)
    np.testing.assert_array_equal(got[:, [8, 10, 11]], likeliest[:, [7, 9, 10]])
    drawn = [generate(logits_of, jax.random.key(i), TOKENS, mine, first=8, temperature=1.0) for i in (0, 0, 1)]
    assert bool((drawn[0] == drawn[1]).all()) and not bool((drawn[0] == drawn[2]).all())


@pytest.fixture(scope="module")
def small():
    """A decoder of one layer, two texts, and the learner's loss of them as one program of the weights and the step."""
    lm = models.random(models.llama.config(toy_config(num_hidden_layers=1)), seed=0)
    batch = jax.tree.map(lambda x: x[0], stacked(texts(2, length=12)))
    frozen, start = Frozen.of(lm), own_weights(lm.params)

    def loss(weights, step):
        return LEARNER.loss(weights, frozen, batch, Moment(step=step, key=jax.random.key(0), steps=10))

    return loss, start


def test_the_first_part_is_training_as_usual_and_the_second_keeps_a_share(small):
    loss, start = small
    early, late = (jax.jit(loss)(start, jnp.int32(step)) for step in (4, 5))
    assert early.kept == 1 and early.terms["memory"] == 0 and late.kept == 0.5 and np.isfinite(late.loss)


@pytest.mark.slow
def test_gradients_follow_rewards(small, monkeypatch):
    """Where no answer is right, nothing is learned; where one rollout is worth more, queries that drew its blocks are."""
    loss, start = small

    def gradient(gain):
        monkeypatch.setattr("kvjax.train.learners.neural_garbage_collection.advantages", gain)
        return jax.jit(jax.grad(lambda w: loss(w, jnp.int32(5)).loss))(start)

    still = gradient(jnp.zeros_like)
    assert not any(np.any(x) for x in jax.tree.leaves(still))
    moved = gradient(lambda reward: jnp.ones_like(reward).at[:, 1:].set(-0.5))
    assert np.any(moved["layers.0.attention.q.weight"]) and all(np.isfinite(x).all() for x in jax.tree.leaves(moved))


def test_prompts_that_are_no_whole_blocks_are_refused(lm):
    for wrong in (dict(first=7), dict(first=12), dict(window=9)):
        with pytest.raises(ValueError, match="whole blocks of 2"):
            NeuralGarbageCollection(**{"first": 8, "size": 2, "window": 3, **wrong}).check(lm.decoder, 12)
    with pytest.raises(ValueError, match="not all of them; got 0.95"):
        NeuralGarbageCollection(first=8, window=3, share=0.95).check(lm.decoder, 12)
