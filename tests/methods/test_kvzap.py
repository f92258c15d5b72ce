"""KVzap against its transcription: both maps, prompt and decode steps, what a threshold frees."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import HiddenStates
from kvjax.select import AboveOrRecent
from kvjax.view import LayerView, Ranking
from tests.method_cases import surrogate_gate
from tests.methods.gated import Transcribed, of_layer
from tests.reference import kvzap

THRESHOLD, WINDOW, STEPS = 0.4, 8, 64


def policy_of(hidden, **arguments):
    return kvjax.methods.kvzap(surrogate_gate(hidden), threshold=THRESHOLD, window=WINDOW, **arguments)


@pytest.fixture(scope="module")
def prompted(lm, prompt):
    return kvjax.prefill(lm, prompt, needs=policy_of(0).needs | policy_of(24).needs | {HiddenStates()})


def transcribed(pre, hidden, sinks):
    gate = lambda layer, x: kvzap.surrogate(np.asarray(x, np.float64), of_layer(surrogate_gate(hidden), layer)).T  # noqa: E731
    return Transcribed(
        pre,
        lambda: kvzap.Head(16, threshold=THRESHOLD, window=WINDOW, sinks=sinks),
        lambda layer, inputs: gate(layer, np.asarray(inputs.x)[0]),
        lambda layer: gate(layer, pre.rows[0].evidence[layer].hidden_states()[0]),
    )


@pytest.mark.parametrize(("hidden", "sinks"), [(0, 0), (24, 4)])
def test_prompt_and_64_steps_are_the_transcription(lm, prompted, hidden, sinks):
    policy, rule = policy_of(hidden, sinks=sinks), transcribed(prompted, hidden, sinks)
    cache = kvjax.compress(prompted, policy)
    rule.check_prompt(cache)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    rule.check_steps(lm, out)
    assert (out.cache.lengths > WINDOW).any() and (out.cache.lengths < 90 + STEPS - WINDOW).all()


def test_what_goes_is_freed(prompted):
    cache, full = kvjax.compress(prompted, policy_of(24)), kvjax.compress(prompted, kvjax.methods.full())
    assert cache.slot_nbytes == full.numbered().slot_nbytes + 4
    assert cache.lengths.sum() < 0.6 * full.lengths.sum()
    assert cache.slots < 0.7 * full.slots


def firsts(cache):
    """How many of the first four tokens each head holds."""
    return [int((pos < 4).sum()) for layer in range(3) for pos in cache.kept(layer)[0]]


def test_first_tokens_stay_where_they_are_asked_for(prompted):
    """By default they are judged as all others are, and some go."""
    without, kept = (kvjax.compress(prompted, policy_of(24, **given)) for given in ({}, {"sinks": 4}))
    assert firsts(kept) == [4] * 6 and min(firsts(without)) < 4
    np.testing.assert_array_equal(kept.lengths - without.lengths, 4 - np.reshape(firsts(without), without.lengths.shape))


def test_the_prompt_alone(lm, prompted):
    policy = policy_of(24, decoding=False)
    cache = kvjax.compress(prompted, policy)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=())
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths + 12)


@pytest.mark.parametrize(
    ("tau", "recent", "want"), [(0.5, 2, [1, 4, 5]), (0.9, 0, [1]), (2.0, 0, [1]), (-9, 0, [0, 1, 2, 3, 4, 5])]
)
def test_the_rule_by_hand(tau, recent, want):
    scores, pos = jnp.array([[[[0.1, 0.9, 0.3, 0.4, 0.2, 0.0]]]]), jnp.arange(6)[None, None]
    view = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([6]))
    rule, budget = AboveOrRecent(tau=tau, recent=recent), jnp.ones((1, 1, 1), jnp.int32)
    ranking = Ranking(scores=scores, protected=rule.protected(view, budget[0])[None], valid=view.valid[None], pos=pos[None])
    np.testing.assert_array_equal(np.flatnonzero(rule(ranking, budget)), want)


def test_the_oracle_by_hand():
    """A .2, ||v W_o|| 3, ||h|| 4; a threshold of -4 is .0183."""
    np.testing.assert_allclose(kvzap.oracle(0.2, 3, 4), -1.897120, atol=5e-7)
    np.testing.assert_allclose(np.exp(-4), 0.0183, atol=5e-5)


def test_weights_of_another_model_are_refused(prompted):
    wide = {"down": {name: np.concatenate([w, w]) for name, w in surrogate_gate(0)["down"].items()}}
    with pytest.raises(ValueError, match="SurrogateGate are not this model's"):
        kvjax.compress(prompted, kvjax.methods.kvzap(wide))
